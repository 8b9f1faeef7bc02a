package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"starfish/etcdqueue"
	"starfish/internal/cli"
	"starfish/job"
)

func queueCommand(s streams) *cobra.Command {
	c := &cobra.Command{
		Use:   "queue",
		Short: "Look into the queue of a job, and take chunks back from quarantine",
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(queueLsCommand(s), queueFailedCommand(s), queueRequeueCommand(s), queueAuditCommand(s))
	return c
}

// queueList is the answer of `starfish queue ls`.
type queueList struct {
	about
	Phase    etcdqueue.Phase `json:"phase"`
	Pass     int             `json:"pass"` // the current one, from 0
	Floor    int             `json:"floor"`
	Reopened []int           `json:"reopened"`
	// Removed sums up the passes below Floor, whose lanes are gone.
	Removed etcdqueue.Totals `json:"removed"`
	Passes  []passLine       `json:"passes"`
	// Lanes of one pass, LanesOf: the one that was asked for, or the current.
	LanesOf int         `json:"lanes_of"`
	Lanes   []laneLine  `json:"lanes"`
	Lane    *laneDetail `json:"lane,omitempty"`

	wantLanes bool
}

// passLine is one pass.
type passLine struct {
	Pass int `json:"pass"`
	etcdqueue.Totals
}

// laneLine is one lane.
type laneLine struct {
	Lane int `json:"lane"`
	etcdqueue.Totals
}

// laneDetail is one lane as its record says it.
type laneDetail struct {
	Lane     int            `json:"lane"`
	Todo     string         `json:"todo"` // sets of positions
	Complete string         `json:"complete"`
	Failed   string         `json:"failed"`
	Again    string         `json:"again"`
	Tries    map[string]int `json:"tries"` // data failures by position
	Pending  []pendingEntry `json:"pending"`
}

// pendingEntry is what one take left in the lane.
type pendingEntry struct {
	etcdqueue.Entry
	// Chunks are those at the positions, at most so many.
	Chunks []int64 `json:"chunks"`
}

// maxListedChunks bounds the list of chunks of an entry.
const maxListedChunks = 100

// queueFlags are the flags of `starfish queue ls`; -1: not given.
type queueFlags struct {
	question
	pass, lane int
}

func queueLsCommand(s streams) *cobra.Command {
	var o queueFlags
	c := &cobra.Command{
		Use:   "ls",
		Short: "List passes and lanes with their counts",
		Long: "Lists the passes of which lanes are there, with counts of chunks; --pass lists the lanes of one, --lane says\n" +
			"what is in a lane: who has which chunks in hand, since which take (token), and how often progress was seen (beat).",
		Example: "  starfish queue ls --dir run1\n  starfish queue ls --dir run1 --pass 3 --lane 17 -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			if o.pass < 0 && c.Flags().Changed("pass") || o.lane < 0 && c.Flags().Changed("lane") {
				return cli.Usage("--pass and --lane count from 0")
			}
			return o.ask(c.Context(), s, o.list)
		},
	}
	o.register(c)
	c.Flags().IntVar(&o.pass, "pass", -1, "list the lanes of this pass, from 0 (default: the current one's, with --lane)")
	c.Flags().IntVar(&o.lane, "lane", -1, "say what is in this lane, from 0")
	return c
}

func (o *queueFlags) list(ctx context.Context, f *found) (answer, error) {
	sums, s, err := f.queue.PassTotals(ctx)
	if err != nil {
		return nil, err
	}
	l := &queueList{about: aboutJob(f.job), Phase: s.Phase, Pass: s.Pass, Floor: s.Floor, Reopened: append([]int{}, s.Reopened...),
		Removed: s.Past, Passes: []passLine{}, Lanes: []laneLine{}, LanesOf: s.Pass, wantLanes: o.pass >= 0}
	for pass := s.Floor; pass <= s.Pass; pass++ {
		if sum, ok := sums[pass]; ok {
			l.Passes = append(l.Passes, passLine{pass, sum})
		}
	}
	if o.pass >= 0 {
		l.LanesOf = o.pass
	}
	lanes, _, _, err := f.queue.Lanes(ctx, l.LanesOf)
	if errors.Is(err, etcdqueue.ErrNoPass) {
		return nil, cli.Usage("--pass %d: there are lanes of the passes %d to %d", l.LanesOf, s.Floor, s.Pass)
	}
	if err != nil {
		return nil, err
	}
	for i, lane := range lanes {
		if sum := lane.Totals(); sum.Chunks > 0 {
			l.Lanes = append(l.Lanes, laneLine{i, sum})
		}
	}
	if o.lane >= len(lanes) {
		return nil, cli.Usage("--lane %d: there are %d lanes, from 0", o.lane, len(lanes))
	}
	if o.lane >= 0 {
		m, err := f.queue.Manifest(ctx, l.LanesOf)
		if err != nil {
			return nil, err
		}
		l.Lane = detail(o.lane, lanes, func(rank int64) int64 { return f.queue.Chunk(m, l.LanesOf, rank) })
	}
	return l, nil
}

// detail describes a lane. chunk is the chunk at a rank.
func detail(number int, lanes []etcdqueue.Lane, chunk func(rank int64) int64) *laneDetail {
	l := lanes[number]
	d := &laneDetail{Lane: number, Todo: l.Todo.String(), Complete: l.Complete.String(), Failed: l.Failed.String(), Again: l.Again.String(),
		Tries: map[string]int{}, Pending: []pendingEntry{}}
	for position, n := range l.Tries {
		d.Tries[strconv.FormatInt(position, 10)] = n
	}
	for _, e := range l.Pending {
		p := pendingEntry{Entry: e, Chunks: []int64{}}
		for position := range e.At.All() {
			if len(p.Chunks) == maxListedChunks {
				break
			}
			p.Chunks = append(p.Chunks, chunk(position*int64(len(lanes))+int64(number)))
		}
		d.Pending = append(d.Pending, p)
	}
	return d
}

func (l *queueList) text(b *strings.Builder) {
	if l.Lane != nil {
		l.Lane.text(b, l.LanesOf)
		return
	}
	columns := func(t etcdqueue.Totals) []string {
		return []string{thousands(t.Todo), thousands(t.Pending), thousands(t.Complete), thousands(t.Failed), thousands(t.Batches),
			thousands(t.Records), thousands(t.Takes), thousands(t.Requeued), thousands(t.Speculated), thousands(t.Reopened)}
	}
	titles := []string{"TODO", "PENDING", "COMPLETE", "FAILED", "BATCHES", "RECORDS", "TAKES", "REQUEUED", "SPECULATED", "REOPENED"}
	table(b, func(row func(...string)) {
		if l.wantLanes {
			row(append([]string{"LANE"}, titles...)...)
			for _, lane := range l.Lanes {
				row(append([]string{fmt.Sprint(lane.Lane)}, columns(lane.Totals)...)...)
			}
			return
		}
		row(append([]string{"PASS"}, titles...)...)
		if l.Floor > 0 {
			row(append([]string{fmt.Sprintf("before %d", l.Floor+1)}, columns(l.Removed)...)...)
		}
		for _, p := range l.Passes {
			name := fmt.Sprint(p.Pass + 1)
			if slices.Contains(l.Reopened, p.Pass) {
				name += " (reopened)"
			}
			row(append([]string{name}, columns(p.Totals)...)...)
		}
	})
}

func (d *laneDetail) text(b *strings.Builder, pass int) {
	fmt.Fprintf(b, "lane %d of pass %d, by positions\n", d.Lane, pass+1)
	for _, set := range [][2]string{{"todo", d.Todo}, {"complete", d.Complete}, {"failed", d.Failed}, {"again", d.Again}} {
		if set[1] != "" {
			fmt.Fprintf(b, "%-9s %s\n", set[0], set[1])
		}
	}
	if len(d.Pending) == 0 {
		return
	}
	b.WriteByte('\n')
	table(b, func(row func(...string)) {
		row("PENDING", "CHUNKS", "TRAINER", "TOKEN", "BEAT", "WAITS FOR")
		for _, e := range d.Pending {
			row(e.At.String(), chunkText(e.Chunks), e.Owner, fmt.Sprint(e.Token), fmt.Sprint(e.Beat), e.Reason)
		}
	})
}

func chunkText(chunks []int64) string {
	const most = 8
	text := make([]string, 0, most)
	for _, c := range chunks[:min(most, len(chunks))] {
		text = append(text, fmt.Sprint(c))
	}
	if len(chunks) > most {
		text = append(text, "…")
	}
	return strings.Join(text, " ")
}

// requeued is the answer of `starfish queue requeue`.
type requeued struct {
	about
	// Chunks were taken back from quarantine; Pass is the first in which they
	// are trained again.
	Chunks []int64 `json:"chunks"`
	Pass   *int    `json:"pass"`
}

func queueRequeueCommand(s streams) *cobra.Command {
	var q question
	var all bool
	c := &cobra.Command{
		Use:   "requeue CHUNK… | --all",
		Args:  cobra.ArbitraryArgs,
		Short: "Take chunks back from quarantine",
		Long: "Takes quarantined chunks back: they are trained in the current pass and all later ones, with all their tries.\n" +
			"Passes that are over stay without them. Batches of them that were applied before stay applied, and are\n" +
			"not applied again. A job that drains or has ended takes nothing back.",
		Example: "  starfish queue requeue 5 17 --dir run1\n  starfish queue requeue --all --etcd-endpoints 10.0.0.1:2379 --job adult",
		RunE: func(c *cobra.Command, args []string) error {
			chunks, err := chunkNumbers(args)
			if err != nil {
				return err
			}
			if all == (len(chunks) > 0) {
				return cli.Usage("name the chunks to take back, or --all; `starfish queue failed` lists them")
			}
			return q.ask(c.Context(), s, func(ctx context.Context, f *found) (answer, error) { return requeue(ctx, f, chunks) })
		},
	}
	q.register(c)
	c.Flags().BoolVar(&all, "all", false, "take all quarantined chunks back")
	return c
}

func chunkNumbers(args []string) ([]int64, error) {
	chunks := []int64{}
	for _, arg := range args {
		n, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || n < 0 {
			return nil, cli.Usage("%q is not the number of a chunk", arg)
		}
		if !slices.Contains(chunks, n) {
			chunks = append(chunks, n)
		}
	}
	return chunks, nil
}

// requeue takes chunks back; none given: all of them.
func requeue(ctx context.Context, f *found, chunks []int64) (*requeued, error) {
	if len(chunks) == 0 {
		failed, err := f.queue.FailedChunks(ctx)
		if err != nil {
			return nil, err
		}
		for _, r := range failed {
			chunks = append(chunks, r.Chunk)
		}
	}
	a := &requeued{about: aboutJob(f.job), Chunks: chunks}
	if len(chunks) == 0 {
		a.Chunks = []int64{}
		return a, nil
	}
	pass, err := f.queue.Readmit(ctx, chunks)
	a.Pass = &pass
	if errors.Is(err, etcdqueue.ErrNotQuarantined) {
		err = cli.Usage("%w", err)
	}
	if errors.Is(err, etcdqueue.ErrPhase) {
		err = job.Exit(job.ExitFailure, err)
	}
	return a, err
}

func (a *requeued) text(b *strings.Builder) {
	if a.Pass == nil {
		b.WriteString("no chunk is quarantined\n")
		return
	}
	fmt.Fprintf(b, "%s back, from pass %d on\n", plural(int64(len(a.Chunks)), "chunk is", "chunks are"), *a.Pass+1)
}
