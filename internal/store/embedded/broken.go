package embedded

import (
	"fmt"
	"sync"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// breakage is the end of an etcd that cannot go on, such as when the disk is
// full. etcd then logs at level fatal or panic, which would end this process
// without a word; as the hook of these levels a breakage keeps the reason
// instead and holds the goroutine for good, so that nothing that etcd does
// after such a call happens. Such a server cannot be closed, only left alone.
type breakage struct {
	once sync.Once
	done chan struct{} // closed once err is set
	err  error
}

func newBreakage() *breakage { return &breakage{done: make(chan struct{})} }

func (b *breakage) set(err error) {
	b.once.Do(func() {
		b.err = err
		close(b.done)
	})
}

// OnWrite is called after the entry was logged.
func (b *breakage) OnWrite(e *zapcore.CheckedEntry, fields []zapcore.Field) {
	b.set(reason(e.Message, fields))
	select {}
}

// reason is an entry as an error.
func reason(message string, fields []zapcore.Field) error {
	for _, f := range fields {
		if err, ok := f.Interface.(error); ok {
			return fmt.Errorf("%s: %w", message, err)
		}
	}
	return fmt.Errorf("%s", message)
}

// hooks make a logger call the breakage where it would end the process.
func (b *breakage) hooks() []zap.Option {
	return []zap.Option{zap.WithFatalHook(b), zap.WithPanicHook(b)}
}
