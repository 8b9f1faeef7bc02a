package supervise

import "time"

// Codes of exits that a supervisor must understand; those of the contract.
const (
	codeFailure    = 1
	codeUsage      = 2
	codeNoStore    = 3
	codeSuperseded = 4
	codeStateLost  = 5
	codeDataLost   = 6
)

// The numbers of the restart policy.
const (
	early      = 10 * time.Second // an exit this soon after the start is an early one
	firstDelay = time.Second      // before the second start after an early failure
	lastDelay  = 30 * time.Second // the delay doubles up to here
	patience   = 3                // early exits in a row with code 5 or 6 that end the run
	endurance  = 6                // the same with any other code
)

// Exit is how a child ended.
type Exit struct {
	Code   int    // exit code; -1 if a signal ended it
	Signal string // the signal's name, if one did
	Crash  bool   // it ended by a Go panic or a fatal error of the runtime
	Uptime time.Duration
	Line   string // the decisive last line of its log
}

// failed tells whether the child ended by a code that is not 0.
func (e Exit) failed() bool { return e.Code > 0 }

// code is the exit code that counts: a crash of the Go runtime ends with the
// code 2, which elsewhere means wrong usage.
func (e Exit) code() int {
	if e.Crash {
		return codeFailure
	}
	return e.Code
}

// verdict is what happens after an exit.
type verdict int

const (
	again  verdict = iota // start it again after the delay
	leave                 // let it be; the others go on
	giveUp                // end the run with the child's code
)

// history is what the policy remembers of one child. The zero value is that of
// a child that never ended.
type history struct {
	fails int // early failures in a row with the same code
	code  int // that code
	delay time.Duration
}

// next decides what happens after an exit.
func (h *history) next(e Exit) (verdict, time.Duration) {
	if !e.failed() {
		if e.Signal != "" || e.Uptime >= early {
			*h = history{}
			return again, 0
		}
		// A program that ends at once, in order, would be started without pause.
		h.fails = 0
		h.delay = min(max(2*h.delay, firstDelay), lastDelay)
		return again, h.delay
	}
	code := e.code()
	switch code {
	case codeSuperseded:
		return leave, 0
	case codeUsage:
		return giveUp, 0
	}
	if e.Uptime >= early {
		*h = history{}
		return again, 0
	}
	if code != h.code {
		h.code, h.fails = code, 0
	}
	h.fails++
	limit := endurance
	if code == codeStateLost || code == codeDataLost {
		limit = patience
	}
	if h.fails >= limit {
		return giveUp, 0
	}
	h.delay = min(max(2*h.delay, firstDelay), lastDelay)
	return again, h.delay
}
