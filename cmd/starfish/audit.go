package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"starfish/checkpoint"
	"starfish/etcdqueue"
	"starfish/internal/membership"
	"starfish/internal/transport"
	"starfish/job"
	"starfish/pserver/ledger"
	"starfish/pserver/pb"
)

// auditList is the answer of `starfish queue audit`.
type auditList struct {
	about
	// Agree: nothing that was compared differs.
	Agree bool `json:"agree"`
	// Shards says whose ledgers were compared, and Passes what came of it.
	Shards []ledgerSource `json:"shards"`
	Passes []auditedPass  `json:"passes"`
}

// ledgerSource is where a shard's sums come from.
type ledgerSource struct {
	Shard int `json:"shard"`
	// Source is the shard's owner, or its newest checkpoint if there is none or
	// it does not answer.
	Source string `json:"source"` // pserver, checkpoint
	// Lost batches of the whole job were given up by restores.
	Lost int64 `json:"lost"`
}

const (
	fromOwner      = "pserver"
	fromCheckpoint = "checkpoint"
)

// The verdicts on a pass.
const (
	auditAgree   = "agree"
	auditDiffer  = "differ"
	auditRunning = "running" // chunks of it are Todo or Pending
	auditBehind  = "behind"  // a shard is known by a checkpoint that does not cover it
)

// auditedPass compares lanes and ledgers over one pass, or over all that were
// removed.
type auditedPass struct {
	From    int    `json:"from"` // the pass; more than one if From < To
	To      int    `json:"to"`
	Verdict string `json:"verdict"`
	// Batches and Records of the lanes: each Complete chunk once.
	Batches int64 `json:"batches"`
	Records int64 `json:"records"`
	// Failed chunks. Batches of them that were applied before they failed are
	// in the ledgers and not in the lanes.
	Failed int64        `json:"failed"`
	Shards []shardAudit `json:"shards"`
}

// shardAudit is what one shard's ledger has of it.
type shardAudit struct {
	Shard   int   `json:"shard"`
	Batches int64 `json:"batches"` // applied
	Skipped int64 `json:"skipped"`
	Lost    int64 `json:"lost"` // given up by restores
	// Records is null where an owner has folded several passes together.
	Records *int64 `json:"records"`
	// Differs says how it differs from the lanes; empty: it does not.
	Differs string `json:"differs,omitempty"`
}

func queueAuditCommand(s streams) *cobra.Command {
	var q question
	c := &cobra.Command{
		Use:   "audit",
		Short: "Compare what the queue and the shards have counted",
		Long: "Compares the sums of the lanes with those of every shard's ledger, pass by pass: batches and records of each\n" +
			"Complete chunk must have been counted exactly once by each shard. Exit code 1 if they differ. A pass in\n" +
			"which chunks are still Todo or Pending is not compared.",
		Example: "  starfish queue audit --dir run1\n  starfish queue audit --etcd-endpoints 10.0.0.1:2379 --job adult -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			return q.open(c.Context(), s, func(ctx context.Context, f *found) error {
				a, err := auditJob(ctx, f)
				if err == nil {
					err = say(s.out, q.form, a)
				}
				if err == nil && !a.Agree {
					err = job.Exitf(job.ExitFailure, "lanes and ledgers differ")
				}
				return err
			})
		},
	}
	q.register(c)
	return c
}

// counts are one shard's sums as far as they are known.
type counts struct {
	source string
	lost   int64
	// folded: past has no records.
	folded bool
	// through: passes below it are in past together; from covered on nothing is
	// known (a checkpoint does not say what came after it).
	through, covered int
	past             ledger.Sums
	passes           map[int]ledger.Sums
}

// auditJob reads the lanes before and after the ledgers: what has not changed
// meanwhile can be compared.
func auditJob(ctx context.Context, f *found) (*auditList, error) {
	before, s, err := f.queue.PassTotals(ctx)
	if err != nil {
		return nil, err
	}
	shards, err := readCounts(ctx, f)
	if err != nil {
		return nil, err
	}
	after, now, err := f.queue.PassTotals(ctx)
	if err != nil {
		return nil, err
	}
	if now.Floor != s.Floor { // compare by what is there now
		before, s = after, now
	}
	a := &auditList{about: aboutJob(f.job), Agree: true, Passes: []auditedPass{}}
	for i, c := range shards {
		a.Shards = append(a.Shards, ledgerSource{i, c.source, c.lost})
	}
	for _, p := range spans(s, before, after, shards) {
		p.compare(shards)
		a.Agree = a.Agree && p.Verdict != auditDiffer
		a.Passes = append(a.Passes, p)
	}
	return a, nil
}

// spans are the passes to compare, with the lanes' sums. Those that some ledger
// has folded together, or whose lanes are gone, are one.
func spans(s etcdqueue.State, before, after map[int]etcdqueue.Totals, shards []counts) []auditedPass {
	first := s.Floor
	for _, c := range shards {
		first = max(first, c.through)
	}
	first = min(first, s.Pass+1)
	var list []auditedPass
	add := func(from, to int, sum etcdqueue.Totals, moved bool) {
		p := auditedPass{From: from, To: to, Batches: sum.Batches, Records: sum.Records, Failed: sum.Failed}
		if moved || sum.Todo+sum.Pending > 0 {
			p.Verdict = auditRunning
		}
		list = append(list, p)
	}
	if first > 0 {
		sum, moved := s.Past, false
		for pass := s.Floor; pass < first; pass++ {
			sum = sum.Add(before[pass])
			moved = moved || before[pass] != after[pass]
		}
		add(0, first-1, sum, moved)
	}
	for pass := first; pass <= s.Pass; pass++ {
		add(pass, pass, before[pass], before[pass] != after[pass])
	}
	return list
}

// compare fills in the shards and the verdict.
func (p *auditedPass) compare(shards []counts) {
	p.Shards = []shardAudit{}
	differs, behind := false, false
	for shard, c := range shards {
		if p.To >= c.covered {
			behind = true
			continue
		}
		sum := c.over(p.From, p.To)
		a := shardAudit{Shard: shard, Batches: sum.Batches, Skipped: sum.Skipped, Lost: sum.Lost}
		if p.From > 0 || !c.folded || c.through == 0 {
			a.Records = &sum.Records
		}
		if p.Verdict != auditRunning {
			a.Differs = p.differs(a)
			differs = differs || a.Differs != ""
		}
		p.Shards = append(p.Shards, a)
	}
	switch {
	case p.Verdict == auditRunning:
	case differs:
		p.Verdict = auditDiffer
	case behind:
		p.Verdict = auditBehind
	default:
		p.Verdict = auditAgree
	}
}

// differs says how a ledger's sums differ from the lanes'. Of chunks that failed
// it may have more, and never less; of batches that are lost it has no records.
func (p *auditedPass) differs(a shardAudit) string {
	batches, records := a.Batches+a.Skipped+a.Lost-p.Batches, int64(0)
	if a.Records != nil {
		records = *a.Records - p.Records
	}
	if p.Failed > 0 {
		batches, records = min(batches, 0), min(records, 0)
	}
	if a.Lost > 0 {
		records = max(records, 0)
	}
	switch {
	case batches == 0 && records == 0:
		return ""
	case batches != 0:
		return fmt.Sprintf("%+d batches, %+d records", batches, records)
	}
	return fmt.Sprintf("%+d records", records)
}

// countsOf are the sums that an owner tells: of single passes, and of all
// together, from which those of the passes before them follow.
func countsOf(st *pb.ShardStats) counts {
	c := counts{source: fromOwner, lost: st.Lost, folded: true, covered: math.MaxInt, through: math.MaxInt, passes: make(map[int]ledger.Sums)}
	c.past = ledger.Sums{Batches: st.Batches, Skipped: st.Skipped, Lost: st.Lost}
	for _, p := range st.Passes {
		c.passes[int(p.Pass)] = ledger.Sums{Batches: p.Batches, Skipped: p.Skipped, Lost: p.Lost, Records: p.Records}
		c.past.Batches -= p.Batches
		c.past.Skipped -= p.Skipped
		c.past.Lost -= p.Lost
		c.through = min(c.through, int(p.Pass))
	}
	if len(st.Passes) == 0 {
		c.through = 0 // it has counted nothing yet
	}
	return c
}

// over adds up the passes from … to.
func (c counts) over(from, to int) ledger.Sums {
	var sum ledger.Sums
	if from == 0 {
		sum = c.past
	}
	for pass, s := range c.passes {
		if pass >= from && pass <= to {
			sum.Add(s)
		}
	}
	return sum
}

// readCounts reads every shard's sums: from its owner, or its newest checkpoint.
func readCounts(ctx context.Context, f *found) ([]counts, error) {
	view, err := membership.ReadView(ctx, f.store)
	if err != nil {
		return nil, err
	}
	shards := make([]counts, f.job.Parameters.Shards)
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(askedAtOnce)
	asked := make(map[string]bool)
	for _, o := range view.Shards {
		if !o.Owned() || asked[o.Address] {
			continue
		}
		asked[o.Address] = true
		g.Go(func() error {
			stats, err := shardStats(ctx, transport.TCP, o.Address)
			if err != nil {
				return nil //nolint:nilerr // the checkpoints are asked instead
			}
			mu.Lock()
			defer mu.Unlock()
			for _, st := range stats {
				if i := int(st.Shard); i < len(shards) && view.Shards[i].Generation == st.Generation && view.Shards[i].Address == o.Address {
					shards[i] = countsOf(st)
				}
			}
			return nil
		})
	}
	_ = g.Wait()
	return shards, fillFromCheckpoints(ctx, f, shards)
}

// fillFromCheckpoints reads what no owner has told.
func fillFromCheckpoints(ctx context.Context, f *found, shards []counts) error {
	if !slices.ContainsFunc(shards, func(c counts) bool { return c.source == "" }) {
		return nil
	}
	metas, _, err := checkpoint.ListAll(ctx, f.store, len(shards))
	if err != nil {
		return err
	}
	for i := range shards {
		if shards[i].source != "" {
			continue
		}
		shards[i] = counts{source: fromCheckpoint}
		if len(metas[i]) == 0 {
			continue
		}
		var sum ledger.Summary
		if err := json.Unmarshal(metas[i][0].Ledger, &sum); err != nil {
			return fmt.Errorf("the summary of shard %d's newest checkpoint: %w", i, err)
		}
		c := &shards[i]
		c.covered, c.past, c.passes = sum.Passes, sum.Past, make(map[int]ledger.Sums)
		total := sum.Total()
		c.through, c.lost = sum.Passes, total.Lost
		for _, p := range sum.Sums {
			c.passes[p.Pass] = p.Sums
			c.through = min(c.through, p.Pass)
		}
	}
	return nil
}

func (a *auditList) text(b *strings.Builder) {
	table(b, func(row func(...string)) {
		row("PASS", "LANES: BATCHES", "RECORDS", "FAILED CHUNKS", "VERDICT")
		for _, p := range a.Passes {
			name := fmt.Sprint(p.To + 1)
			if p.From < p.To {
				name = fmt.Sprintf("%d to %d", p.From+1, p.To+1)
			}
			row(name, thousands(p.Batches), thousands(p.Records), thousands(p.Failed), p.verdictText())
		}
	})
	fromCheckpoints := 0
	for _, s := range a.Shards {
		if s.Source == fromCheckpoint {
			fromCheckpoints++
		}
		if s.Lost > 0 {
			fmt.Fprintf(b, "shard %d has lost %s\n", s.Shard, plural(s.Lost, "batch", "batches"))
		}
	}
	fmt.Fprintf(b, "%s compared, %d by their newest checkpoints\n", plural(int64(len(a.Shards)), "shard", "shards"), fromCheckpoints)
}

func (p auditedPass) verdictText() string {
	switch p.Verdict {
	case auditRunning:
		return "not over, not compared"
	case auditBehind:
		return "not compared: a checkpoint that covers it is missing"
	case auditAgree:
		if p.Failed > 0 {
			return "agree, but for batches of failed chunks"
		}
		return "agree"
	}
	for _, s := range p.Shards {
		if s.Differs != "" {
			return fmt.Sprintf("DIFFER: shard %d has %s", s.Shard, s.Differs)
		}
	}
	return p.Verdict
}
