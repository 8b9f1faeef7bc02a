package embedded

import (
	"sync/atomic"

	"github.com/sirupsen/logrus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// bridge is a logger for etcd that passes on what an operator may need: its
// errors, and at level debug its warnings, which on a busy machine are many
// and harmless. Nothing is passed on once closing is set: an etcd that is
// stopped calls each closed listener an error. Entries that would end the
// process go to broken.
func bridge(log logrus.FieldLogger, closing *atomic.Bool, broken *breakage) *zap.Logger {
	if log == nil {
		return zap.New(zapcore.NewNopCore(), broken.hooks()...)
	}
	return zap.New(&core{log: log.WithField("part", "etcd"), closing: closing}, broken.hooks()...)
}

// newDirectory is what etcd calls an error when its monitor of the storage
// version looks at a new directory before the first term has begun. It looks
// again, and all is well.
const newDirectory = "failed to update storage version"

type core struct {
	log     logrus.FieldLogger
	closing *atomic.Bool
}

func (c *core) Enabled(l zapcore.Level) bool { return l >= zapcore.WarnLevel && !c.closing.Load() }

func (c *core) With(fields []zapcore.Field) zapcore.Core {
	return &core{log: c.log.WithFields(translate(fields)), closing: c.closing}
}

func (c *core) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c *core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	log := c.log.WithFields(translate(fields))
	if e.Level >= zapcore.ErrorLevel && e.Message != newDirectory {
		log.Error(e.Message)
	} else {
		log.Debug(e.Message)
	}
	return nil
}

func (c *core) Sync() error { return nil }

func translate(fields []zapcore.Field) logrus.Fields {
	m := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(m)
	}
	return logrus.Fields(m.Fields)
}
