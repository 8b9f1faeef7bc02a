package main

import (
	"syscall"

	"starfish/internal/clock"
)

// usage is what something took.
type usage struct{ wall, cpu float64 } // s

// took measures f.
func took(f func() error) (usage, error) {
	began, before := clock.System.Now(), processor()
	err := f()
	return usage{clock.System.Now().Sub(began).Seconds(), processor() - before}, err
}

// processor is the processor time of this process, in seconds.
func processor() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// sides are a part and its yardstick, which do the same amount of work.
type sides struct {
	ours, yardstick func() error
	// of says what counts.
	of func(usage) float64
	n  int
}

// seconds is what counts of parts that more than one thread takes part in.
func (c *config) seconds(u usage) float64 {
	if c.cpu {
		return u.cpu
	}
	return u.wall
}

// round runs both, the one that was first second the next time.
func (s *sides) round() (p pair, err error) {
	s.n++
	order := [2]int{s.n % 2, 1 - s.n%2}
	for _, side := range order {
		f, to := s.ours, &p.ours
		if side == 1 {
			f, to = s.yardstick, &p.yardstick
		}
		u, err := took(f)
		if err != nil {
			return p, err
		}
		*to = s.of(u)
	}
	return p, nil
}

// times does f n times.
func times(n int, f func() error) func() error {
	return func() error {
		for range n {
			if err := f(); err != nil {
				return err
			}
		}
		return nil
	}
}

func nothing() error { return nil }
