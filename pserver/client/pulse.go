package client

import (
	"fmt"
	"strings"
	"time"

	"starfish/internal/clock"
)

// A pserver that is stopped keeps its connections, and where nothing is asked of
// it nothing else would tell. So a session looks every pulseEvery whether its
// pservers have sent something. One that has nothing to answer gets an exchange
// without content; one that owes an answer and has sent nothing for pulseTimeout
// is silent, and Waiting says so: within 2 s of its last answer. That does not
// end the session, as the shards are still that pserver's.
const (
	pulseEvery   = 500 * time.Millisecond
	pulseTimeout = time.Second
)

// pulse sees to it that a silent pserver is known, until the session ends.
func (s *Session) pulse() {
	told := false
	for clock.Sleep(s.ctx, s.client.c.Clock, pulseEvery) == nil {
		silent := s.silent(s.client.c.Clock.Now())
		switch {
		case len(silent) > 0:
			told = true
			s.client.waiting("an answer of " + strings.Join(silent, ", "))
		case told:
			told = false
			s.client.waiting("")
		}
	}
}

// silent lists the pservers that do not answer, and asks those that need not.
func (s *Session) silent(now time.Time) []string {
	var silent []string
	idle := false
	for _, p := range s.peers {
		heard := p.heard.Load()
		switch {
		case heard != p.known || p.quiet.IsZero():
			p.known, p.quiet = heard, now
		case p.asked.Load() == heard:
			p.quiet, idle = now, true
		case now.Sub(p.quiet) >= pulseTimeout:
			silent = append(silent, fmt.Sprintf("%s for shards %v", p.owner.Name, p.shards))
		}
	}
	if idle {
		s.ask()
	}
	return silent
}

// ask makes an exchange without content, unless too many are under way.
func (s *Session) ask() {
	select {
	case s.slots <- struct{}{}:
		s.begin(newCall(s, nil, PushMeta{}, nil))
	default:
	}
}
