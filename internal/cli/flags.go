package cli

import (
	"io"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"starfish/job"
)

// Logging is how a process logs.
type Logging struct {
	Level  string
	Format string
}

// Register adds the flags.
func (l *Logging) Register(fs *pflag.FlagSet) {
	fs.StringVar(&l.Level, "log-level", "info", "least level that is logged: debug, info, warn or error")
	fs.StringVar(&l.Format, "log-format", "text", "form of the log: text or json")
}

// Size is a flag's value in bytes, written like 4GiB, 500MB or 1024.
type Size int64

// Set reads a size.
func (s *Size) Set(text string) error {
	b, err := job.ParseSize(text)
	*s = Size(b)
	return err //nolint:wrapcheck // pflag says which flag
}

// String is the size as it could have been written; empty if there is none.
func (s *Size) String() string {
	if *s == 0 {
		return ""
	}
	return job.Bytes(*s).String()
}

// Type names the value in the help.
func (s *Size) Type() string { return "size" }

// Logger makes the logger, which writes to w.
func (l *Logging) Logger(w io.Writer) (*logrus.Logger, error) {
	log := logrus.New()
	log.SetOutput(w)
	level, err := logrus.ParseLevel(l.Level)
	if err != nil || level < logrus.ErrorLevel {
		return nil, Usage("--log-level %q is none of debug, info, warn, error", l.Level)
	}
	log.SetLevel(level)
	switch l.Format {
	case "text":
		log.SetFormatter(&logrus.TextFormatter{DisableColors: true, FullTimestamp: true, TimestampFormat: "15:04:05.000"})
	case "json":
		log.SetFormatter(&logrus.JSONFormatter{TimestampFormat: time.RFC3339Nano})
	default:
		return nil, Usage("--log-format %q is neither text nor json", l.Format)
	}
	return log, nil
}
