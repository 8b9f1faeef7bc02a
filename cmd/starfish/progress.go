package main

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// sight is what the follower sees of a job at one moment.
type sight struct {
	phase    string
	pass     int // from 0
	passes   int
	chunks   int64 // of one pass
	complete int64 // over all passes, failed ones included
	records  int64
	loss     float64 // of the current pass so far; NaN if unknown
	pservers int     // registered
	trainers int
	waits    string // what the job waits for, or what is the matter; "" if nothing is
}

// meter turns sights into a rate and a time to the end.
type meter struct {
	from  time.Time // of the first sight
	first sight
	at    time.Time // of the last one
	last  sight
	rate  float64 // records/s, smoothed
	begun bool
}

// smoothing is the time over which the rate is averaged.
const smoothing = 3 * time.Second

// see takes one sight, at a time of the process's own clock.
func (m *meter) see(now time.Time, s sight) {
	if !m.begun {
		m.from, m.first, m.begun = now, s, true
	} else if dt := now.Sub(m.at).Seconds(); dt > 0 {
		rate := float64(s.records-m.last.records) / dt
		if m.rate == 0 {
			m.rate = rate
		} else {
			keep := math.Exp(-dt / smoothing.Seconds())
			m.rate = keep*m.rate + (1-keep)*rate
		}
	}
	m.at, m.last = now, s
}

// fraction is how much of the job is done, 0 … 1.
func (s sight) fraction() float64 {
	total := s.chunks * int64(s.passes)
	if total <= 0 {
		return 0
	}
	return min(float64(s.complete)/float64(total), 1)
}

// eta is the time to the end at the mean speed so far; false if there is none
// to speak of.
func (m *meter) eta() (time.Duration, bool) {
	done := m.last.fraction() - m.first.fraction()
	took := m.at.Sub(m.from)
	if done <= 0 || took <= 0 {
		return 0, false
	}
	left := (1 - m.last.fraction()) / done * took.Seconds()
	return time.Duration(left * float64(time.Second)).Round(time.Second), true
}

// line is the progress in one line.
func (m *meter) line() string {
	s := m.last
	parts := []string{fmt.Sprintf("%s %3.0f%%", s.phase, 100*s.fraction())}
	parts = append(parts, fmt.Sprintf("pass %d/%d", min(s.pass+1, s.passes), s.passes), thousands(s.records)+" records")
	if !math.IsNaN(s.loss) {
		parts = append(parts, fmt.Sprintf("loss %.4f", s.loss))
	}
	if s.phase == "training" {
		if m.rate >= 1 {
			parts = append(parts, thousands(int64(m.rate))+"/s")
		}
		if eta, ok := m.eta(); ok {
			parts = append(parts, "ETA "+eta.String())
		}
	}
	parts = append(parts, fmt.Sprintf("%d pservers, %d trainers", s.pservers, s.trainers))
	if s.waits != "" {
		parts = append(parts, s.waits)
	}
	return strings.Join(parts, "  ")
}

// thousands writes a number with separators: 1,234,567.
func thousands(n int64) string {
	text := fmt.Sprint(n)
	sign := ""
	if n < 0 {
		sign, text = "-", text[1:]
	}
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return sign + text
}
