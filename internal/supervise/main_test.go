package supervise

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"

	"starfish/internal/clock"
)

// helperVariable makes the test binary play a child instead of running tests.
const helperVariable = "SUPERVISE_TEST_HELPER"

func TestMain(m *testing.M) {
	if script := os.Getenv(helperVariable); script != "" {
		play(strings.Fields(script))
		return
	}
	goleak.VerifyTestMain(m)
}

// play is the life of a test child.
func play(script []string) {
	for len(script) > 0 {
		verb := script[0]
		script = script[1:]
		switch verb {
		case "say":
			fmt.Println(script[0])
			script = script[1:]
		case "env":
			fmt.Printf("%s=%s\n", script[0], os.Getenv(script[0]))
			script = script[1:]
		case "exit":
			code, _ := strconv.Atoi(script[0])
			os.Exit(code)
		case "once": // only in the first life: the file is the memory
			if _, err := os.Stat(script[0]); err == nil {
				script = script[2:]
				break
			}
			_ = os.WriteFile(script[0], nil, 0o644)
			code, _ := strconv.Atoi(script[1])
			os.Exit(code)
		case "panic":
			panic("the sky is falling")
		case "wait":
			c := make(chan os.Signal, 1)
			signal.Notify(c, syscall.SIGTERM)
			fmt.Println("waiting")
			<-c
			fmt.Println("asked to stop")
			os.Exit(0)
		case "deaf":
			signal.Ignore(syscall.SIGTERM)
			fmt.Println("waiting")
			time.Sleep(time.Hour)
		case "parent": // a supervisor with one child that waits
			p := Process{Kind: "pserver", Name: "c", Path: os.Args[0], Env: []string{helperVariable + "=wait"}, Log: script[0]}
			s, err := New(Config{Processes: []Process{p}, Clock: clock.System, Log: quiet()})
			if err == nil {
				err = s.Run(context.Background())
			}
			fmt.Println(err)
			os.Exit(1)
		}
	}
}

func quiet() logrus.FieldLogger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return l
}
