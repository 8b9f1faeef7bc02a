package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"starfish/internal/clock"
)

// What a process that is asked may lack.
var (
	errNoAnswer       = errors.New("does not answer")
	errAnotherProcess = errors.New("another process answers there")
)

// The screen is for one look: of very many shards and processes it shows those
// that need it.
const (
	shownShards  = 16
	shownMembers = 16
	shownFailed  = 5
	barWidth     = 30
)

// text is the status as one screen.
func (s *jobStatus) text(b *strings.Builder) {
	fmt.Fprintf(b, "job      %s (%s)\n", s.Job, s.UUID)
	fmt.Fprintf(b, "phase    %s", s.Phase)
	if s.Reason != "" {
		fmt.Fprintf(b, ": %s", s.Reason)
	}
	fmt.Fprintf(b, ", pass %d of %d%s\n", min(s.Pass+1, s.Passes), s.Passes, s.reopenedText())
	fmt.Fprintf(b, "done     %s\n", s.progressText())
	q := s.Queue
	fmt.Fprintf(b, "chunks   %s todo, %s pending, %s complete, %s failed; %s takes, %s requeued, %s reopened%s\n", thousands(q.Todo),
		thousands(q.Pending), thousands(q.Complete), thousands(q.Failed), thousands(q.Takes), thousands(q.Requeued), thousands(q.Reopened),
		speculatedText(q.Speculated))
	fmt.Fprintf(b, "records  %s in %s batches%s\n", thousands(q.Records), thousands(q.Batches), badText(q.Bad))
	if s.Loss != nil {
		fmt.Fprintf(b, "loss     %.5f in pass %d so far, each batch before its update\n", *s.Loss, *s.LossPass+1)
	}
	fmt.Fprintf(b, "data     %s a pass", plural(s.Chunks, "chunk", "chunks"))
	if s.Files != nil {
		fmt.Fprintf(b, " in %s", plural(int64(*s.Files), "file", "files"))
	}
	b.WriteByte('\n')
	sayUnsplit(b, "         ", s.Unsplit)
	for i, text := range s.Waits {
		label := "         "
		if i == 0 {
			label = "waits    "
		}
		fmt.Fprintf(b, "%s%s\n", label, text)
	}
	s.failedText(b)
	b.WriteByte('\n')
	s.shardTable(b)
	s.memberTable(b)
	if s.Result != nil {
		b.WriteByte('\n')
		summary(b, s.Result)
	}
}

// badText says how many records were left out, as the rest of a line.
func badText(n int64) string {
	if n == 0 {
		return ""
	}
	return "; " + plural(n, "bad record was", "bad records were") + " left out"
}

func speculatedText(n int64) string {
	if n == 0 {
		return ""
	}
	return ", " + thousands(n) + " speculated"
}

func (s *jobStatus) reopenedText() string {
	var names []string
	for _, pass := range s.Reopened {
		names = append(names, fmt.Sprint(pass+1))
	}
	if len(names) == 0 {
		return ""
	}
	return "; chunks of " + numbered("pass", "passes", names) + " are trained again"
}

// progressText is the bar and what belongs to it.
func (s *jobStatus) progressText() string {
	full := int(s.Progress * barWidth)
	text := fmt.Sprintf("[%s%s] %s", strings.Repeat("#", full), strings.Repeat("-", barWidth-full), percent(s.Progress))
	if s.RecordsPerSecond != nil {
		text += "  " + thousands(int64(*s.RecordsPerSecond)) + " records/s"
	}
	if s.ETASeconds != nil {
		text += "  ETA " + (time.Duration(*s.ETASeconds * float64(time.Second))).Round(time.Second).String()
	}
	return text
}

func (s *jobStatus) failedText(b *strings.Builder) {
	for i, c := range s.Failed {
		if i == shownFailed {
			fmt.Fprintf(b, "         and %d more: starfish queue failed\n", len(s.Failed)-i)
			break
		}
		label := "         "
		if i == 0 {
			label = "failed   "
		}
		fmt.Fprintf(b, "%schunk %d: %s\n", label, c.Chunk, c.Reason)
	}
}

func (s *jobStatus) shardTable(b *strings.Builder) {
	shards, served := s.Shards, 0
	if len(shards) > shownShards { // those first that need a look
		var ill, well []shardStatus
		for _, sh := range shards {
			if sh.Serving != nil && *sh.Serving {
				well = append(well, sh)
			} else {
				ill = append(ill, sh)
			}
		}
		served = len(well)
		shards = append(ill, well...)[:shownShards]
	}
	table(b, func(row func(...string)) {
		row("SHARD", "OWNER", "GENERATION", "SERVED", "BATCHES", "CHECKPOINTS", "NEWEST")
		for _, sh := range shards {
			batches := ""
			if sh.Ledger != nil {
				batches = thousands(sh.Ledger.Batches)
			}
			row(fmt.Sprint(sh.Shard), orText(sh.Owner, "(nobody)"), fmt.Sprint(sh.Generation), servedText(sh.Serving), batches,
				fmt.Sprint(sh.Checkpoints), s.newestText(sh))
		}
	})
	told := 0
	for _, sh := range s.Shards {
		if sh.Ledger == nil || sh.Ledger.Lost == 0 {
			continue
		}
		if told++; told <= shownShards {
			fmt.Fprintf(b, "lost: %s\n", lossText(sh.Shard, sh.Ledger.Lost, sh.Ledger.Losses))
		}
	}
	if n := told - shownShards; n > 0 {
		fmt.Fprintf(b, "lost: batches of %s more\n", plural(int64(n), "shard", "shards"))
	}
	if n := len(s.Shards) - len(shards); n > 0 {
		fmt.Fprintf(b, "and %s more; %s of all %s are served\n", thousands(int64(n)), thousands(int64(served)), thousands(int64(len(s.Shards))))
	}
}

// newestText says what the newest checkpoint has, and how old it is while that
// matters. The age is by this machine's clock, and the saver's.
func (s *jobStatus) newestText(sh shardStatus) string {
	if sh.Checkpoints == 0 {
		return "-"
	}
	text := fmt.Sprintf("%s batches, %s", thousands(sh.Batches), plural(int64(sh.Passes), "pass", "passes"))
	if s.Phase.Ended() {
		return text
	}
	return text + ", " + ageText(sh.SavedAt)
}

func ageText(savedAt int64) string {
	age := clock.System.Now().Sub(time.Unix(0, savedAt))
	return max(0, age.Round(time.Second)).String() + " ago"
}

func servedText(serving *bool) string {
	switch {
	case serving == nil:
		return "?"
	case *serving:
		return "yes"
	}
	return "no"
}

func (s *jobStatus) memberTable(b *strings.Builder) {
	if len(s.Pservers)+len(s.Trainers) == 0 {
		return
	}
	b.WriteByte('\n')
	owned := make(map[string]int64)
	for _, sh := range s.Shards {
		owned[sh.Owner]++
	}
	shown := 0
	table(b, func(row func(...string)) {
		row("PROCESS", "ADDRESS", "ANSWERS", "HAS", "VERSION")
		list := func(members []memberStatus, has func(memberStatus) string) {
			for i, m := range members {
				if i == shownMembers {
					return
				}
				shown++
				row(m.Name, m.Address, map[bool]string{true: "yes", false: "no"}[m.Answers], has(m), m.Version)
			}
		}
		list(s.Pservers, func(m memberStatus) string { return plural(owned[m.Name], "shard", "shards") })
		list(s.Trainers, func(m memberStatus) string { return plural(m.Pending, "chunk", "chunks") })
	})
	if n := len(s.Pservers) + len(s.Trainers) - shown; n > 0 {
		fmt.Fprintf(b, "and %s more\n", thousands(int64(n)))
	}
}

func orText(text, without string) string {
	if text == "" {
		return without
	}
	return text
}
