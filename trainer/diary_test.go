package trainer_test

import (
	"sync"

	"github.com/sirupsen/logrus"
)

// diary keeps what the processes of a cluster log.
type diary struct {
	mu    sync.Mutex
	lines []line
}

// line is one entry: its level, message and fields.
type line struct {
	level   logrus.Level
	message string
	data    logrus.Fields
}

func (d *diary) Levels() []logrus.Level { return logrus.AllLevels }

// Fire implements logrus.Hook.
func (d *diary) Fire(e *logrus.Entry) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line{e.Level, e.Message, e.Data})
	return nil
}

// all lists the entries with a message.
func (d *diary) all(message string) []line {
	d.mu.Lock()
	defer d.mu.Unlock()
	var found []line
	for _, l := range d.lines {
		if l.message == message {
			found = append(found, l)
		}
	}
	return found
}
