package etcdqueue

import "slices"

// turned is `state` after everything that the lanes allow: passes without Todo
// and Pending leave the list of reopened ones; when the current pass has none
// left, the next one begins or, after the last one and with the list empty,
// the job drains. finished tells of a pass that may be taken from.
func (s State) turned(finished func(pass int) bool, passes int) State {
	if s.Phase != PhaseTraining {
		return s
	}
	s.Reopened = slices.DeleteFunc(slices.Clone(s.Reopened), finished)
	switch {
	case !finished(s.Pass):
	case s.Pass+1 < passes:
		s.Pass++
	case len(s.Reopened) == 0:
		s.Phase = PhaseDraining
	}
	return s
}

// reopened is `state` after chunks of a pass were reopened: it lists the pass,
// and a job that drained trains again.
func (s State) reopened(pass int) State {
	if !slices.Contains(s.Reopened, pass) {
		s.Reopened = append(slices.Clone(s.Reopened), pass)
		slices.Sort(s.Reopened)
	}
	if s.Phase == PhaseDraining {
		s.Phase = PhaseTraining
	}
	return s
}

// removable is the highest floor not above below: neither the current pass nor
// a reopened one may lose its lanes.
func (s State) removable(below int) int {
	below = min(below, s.Pass)
	if len(s.Reopened) > 0 {
		below = min(below, s.Reopened[0])
	}
	return max(below, s.Floor)
}

// allFailed tells whether a pass has come to its end without one good chunk.
func allFailed(t Totals) bool { return t.Chunks > 0 && t.Failed == t.Chunks }
