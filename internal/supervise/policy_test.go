package supervise

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPolicy(t *testing.T) {
	t.Parallel()
	const soon, late = time.Second, time.Minute
	type step struct {
		exit  Exit
		want  verdict
		delay time.Duration
	}
	cases := map[string][]step{
		"kills are answered at once, however often": {
			{Exit{Code: -1, Signal: "killed", Uptime: soon}, again, 0},
			{Exit{Code: -1, Signal: "killed", Uptime: soon}, again, 0},
		},
		"an orderly end is answered at once": {{Exit{Code: 0, Uptime: late}, again, 0}},
		"early orderly ends back off and never end the run": {
			{Exit{Code: 0, Uptime: soon}, again, time.Second},
			{Exit{Code: 0, Uptime: soon}, again, 2 * time.Second},
			{Exit{Code: 0, Uptime: soon}, again, 4 * time.Second},
			{Exit{Code: 0, Uptime: soon}, again, 8 * time.Second},
			{Exit{Code: 0, Uptime: soon}, again, 16 * time.Second},
			{Exit{Code: 0, Uptime: soon}, again, 30 * time.Second},
			{Exit{Code: 0, Uptime: soon}, again, 30 * time.Second},
			{Exit{Code: -1, Signal: "killed", Uptime: soon}, again, 0},
			{Exit{Code: 0, Uptime: soon}, again, time.Second},
		},
		"a late failure is answered at once": {
			{Exit{Code: 1, Uptime: late}, again, 0},
			{Exit{Code: 5, Uptime: late}, again, 0},
		},
		"early failures back off, and in the end the run ends": {
			{Exit{Code: 1, Uptime: soon}, again, time.Second},
			{Exit{Code: 1, Uptime: soon}, again, 2 * time.Second},
			{Exit{Code: 1, Uptime: soon}, again, 4 * time.Second},
			{Exit{Code: 1, Uptime: soon}, again, 8 * time.Second},
			{Exit{Code: 1, Uptime: soon}, again, 16 * time.Second},
			{Exit{Code: 1, Uptime: soon}, giveUp, 0},
		},
		"another code starts the count again, but not the delay": {
			{Exit{Code: 6, Uptime: soon}, again, time.Second},
			{Exit{Code: 6, Uptime: soon}, again, 2 * time.Second},
			{Exit{Code: 5, Uptime: soon}, again, 4 * time.Second},
			{Exit{Code: 5, Uptime: soon}, again, 8 * time.Second},
			{Exit{Code: 5, Uptime: soon}, giveUp, 0},
		},
		"a long life forgives": {
			{Exit{Code: 1, Uptime: soon}, again, time.Second},
			{Exit{Code: 1, Uptime: late}, again, 0},
			{Exit{Code: 1, Uptime: soon}, again, time.Second},
		},
		"superseded": {{Exit{Code: 4, Uptime: late}, leave, 0}},
		"usage":      {{Exit{Code: 2, Uptime: late}, giveUp, 0}},
		"a crash has the code of wrong usage and is none": {
			{Exit{Code: 2, Crash: true, Uptime: soon}, again, time.Second},
		},
		"no store": {{Exit{Code: codeNoStore, Uptime: late}, again, 0}},
	}
	for name, steps := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var h history
			for i, s := range steps {
				got, delay := h.next(s.exit)
				require.Equal(t, s.want, got, "step %d", i)
				require.Equal(t, s.delay, delay, "step %d", i)
			}
		})
	}
}

func TestDelayIsBounded(t *testing.T) {
	t.Parallel()
	h := history{delay: 20 * time.Second}
	_, delay := h.next(Exit{Code: 1})
	require.Equal(t, lastDelay, delay)
}

func TestDecisiveLine(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		log, line string
		crash     bool
	}{
		"nothing":        {"", "", false},
		"the last line":  {"one\ntwo  \n\n", "two", false},
		"a panic":        {"one\npanic: index out of range\n\ngoroutine 1 [running]:\nmain.main()\n\t/a.go:1 +0x1\nexit status 2\n", "panic: index out of range", true},
		"a fatal error":  {"fatal error: out of memory\n\ngoroutine 7 [running]:\nx()\n", "fatal error: out of memory", true},
		"panic, a word":  {"panic: not really\nlast\n", "last", false},
		"no line break":  {"trainer: no such file", "trainer: no such file", false},
		"carriage lines": {"a\r\nb\r\n", "b", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			line, crash := decisive([]byte(c.log))
			require.Equal(t, c.line, line)
			require.Equal(t, c.crash, crash)
		})
	}
}

func TestParseChaos(t *testing.T) {
	t.Parallel()
	c, err := ParseChaos("pserver=5s, trainer=300ms", "pserver", "trainer")
	require.NoError(t, err)
	require.Equal(t, Chaos{"pserver": 5 * time.Second, "trainer": 300 * time.Millisecond}, c)
	for _, bad := range []string{"", "pserver", "pserver=", "pserver=5", "pserver=-1s", "pserver=0s", "etcd=5s", "pserver=1s,pserver=2s", "pserver=1s,"} {
		_, err := ParseChaos(bad, "pserver", "trainer")
		require.Error(t, err, bad)
	}
}
