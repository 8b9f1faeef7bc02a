package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"starfish/etcdqueue"
	"starfish/internal/cli"
	"starfish/internal/clock"
	"starfish/job"
)

// jobStatus is the answer of `starfish status`.
type jobStatus struct {
	about
	Phase    etcdqueue.Phase  `json:"phase"`
	Reason   string           `json:"reason,omitempty"`
	Pass     int              `json:"pass"` // from 0
	Passes   int              `json:"passes"`
	Floor    int              `json:"floor"`
	Reopened []int            `json:"reopened"`
	Queue    etcdqueue.Totals `json:"queue"` // over all passes that have begun
	// Chunks of the current pass.
	Chunks int64 `json:"chunks"`
	// Files of the data; null where their list is not stored.
	Files   *int          `json:"files"`
	Unsplit []unsplitFile `json:"unsplit_files"`
	// Progress is the part of the work that is done, 0 … 1.
	Progress float64 `json:"progress"`
	// RecordsPerSecond is measured between two looks at the ledgers, and
	// ETASeconds follows from it; null where nothing was measured.
	RecordsPerSecond *float64 `json:"records_per_second"`
	ETASeconds       *float64 `json:"eta_seconds"`
	// Loss is the mean of the newest pass of which anything is trained, so far, each
	// batch before its update, and LossPass that pass: at a turn the one before the
	// current. Null if no pserver tells.
	Loss     *float64 `json:"loss"`
	LossPass *int     `json:"loss_pass"`
	// Waits says what the job waits for, as far as it can be seen from outside.
	Waits    []string          `json:"waits"`
	full     bool              // etcd takes no writes
	Failed   []job.FailedChunk `json:"failed"`
	Shards   []shardStatus     `json:"shards"`
	Pservers []memberStatus    `json:"pservers"`
	Trainers []memberStatus    `json:"trainers"`
	Result   *job.Result       `json:"result,omitempty"`

	counted ledgerCount
	saves   saves
}

// shardStatus is one shard: who owns it, what its owner says of it, and its
// checkpoints.
type shardStatus struct {
	Shard      int    `json:"shard"`
	Owner      string `json:"owner"` // empty: nobody
	Address    string `json:"address,omitempty"`
	Generation int64  `json:"generation"`
	// Serving: the owner says that it serves the shard; null if it does not answer.
	Serving *bool `json:"serving"`
	// Ledger is what the owner has counted; null if it does not answer or serve.
	Ledger *shardLedger `json:"ledger"`
	// Doing is what the owner does with the shard, and CheckpointError why the
	// newest save has failed; empty if it does not answer.
	Doing           string `json:"doing,omitempty"`
	CheckpointError string `json:"checkpoint_error,omitempty"`
	// Step is the open step, where trainers keep step, and WaitsFor says whom it
	// waits for; empty while no batch waits.
	Step     int64  `json:"step,omitempty"`
	WaitsFor string `json:"waits_for,omitempty"`
	// Checkpoints are listed; the newest has these batches and passes.
	Checkpoints int    `json:"checkpoints"`
	Path        string `json:"path,omitempty"`
	Batches     int64  `json:"batches"`
	Passes      int    `json:"passes"`
	SavedAt     int64  `json:"saved_at,omitempty"` // UnixNano by the saver's clock
	// current: the newest checkpoint is of the present generation. memory is what
	// the shard took when it was saved, in bytes; 0: not known.
	current bool
	memory  int64
}

// shardLedger is what a shard has counted since the start of the job.
type shardLedger struct {
	Batches    int64 `json:"batches"`
	Skipped    int64 `json:"skipped"`
	Lost       int64 `json:"lost"`
	Losses     int64 `json:"losses"`
	Duplicates int64 `json:"duplicates"`
	Replayed   int64 `json:"replayed"`
	Rows       int64 `json:"rows"`
	Bytes      int64 `json:"bytes"`
}

// memberStatus is one registered process.
type memberStatus struct {
	Name        string `json:"name"`
	Incarnation string `json:"incarnation"`
	Address     string `json:"address"`
	Version     string `json:"version"`
	// MaxMemory is a pserver's memory limit in bytes.
	MaxMemory int64 `json:"max_memory,omitempty"`
	// Answers: it was asked who it is, and was itself. Error says why not.
	Answers bool   `json:"answers"`
	Error   string `json:"error,omitempty"`
	// Pending is the number of chunks that a trainer has in hand, and Waits what
	// it says it waits for.
	Pending int64  `json:"pending,omitempty"`
	Waits   string `json:"waits,omitempty"`
	// Stalled: a trainer has said that a batch does not get on, so that nobody waits
	// for it.
	Stalled bool `json:"stalled,omitempty"`
}

// statusFlags are the flags of `starfish status`.
type statusFlags struct {
	question
	watch   bool
	measure time.Duration
}

func statusCommand(s streams) *cobra.Command {
	var o statusFlags
	c := &cobra.Command{
		Use:   "status",
		Short: "Say how a job stands",
		Long: "Says how a job stands: what etcd knows of it, and what its processes answer. The speed is measured\n" +
			"between two looks, one second apart. With --watch it is said again every 2 s until the job has ended.",
		Example: "  starfish status --dir run1\n  starfish status --etcd-endpoints 10.0.0.1:2379 --job adult --watch\n" +
			"  starfish status --dir run1 -o json --measure 0",
		RunE: func(c *cobra.Command, _ []string) error {
			if o.measure < 0 {
				return cli.Usage("--measure %s: a time is not negative", o.measure)
			}
			return o.open(c.Context(), s, func(ctx context.Context, f *found) error { return o.show(ctx, f, s) })
		},
	}
	o.register(c)
	c.Flags().BoolVar(&o.watch, "watch", false, "say it again every 2 s until the job has ended")
	c.Flags().DurationVar(&o.measure, "measure", time.Second, "how long to measure the speed of a job that trains; 0: not at all")
	return c
}

// watchEvery is the rhythm of `status --watch`.
const watchEvery = 2 * time.Second

// show says the status, once or again and again. On a terminal the next one is
// drawn over the one before.
func (o *statusFlags) show(ctx context.Context, f *found, s streams) error {
	scr := newScreen(s.out)
	redraw := o.watch && o.form == formText && scr.live
	st, err := readStatus(ctx, f)
	if err == nil && o.measure > 0 && st.moves() {
		if clock.Sleep(ctx, clock.System, o.measure) != nil {
			return nil //nolint:nilerr // asked to stop
		}
		st, err = readAgain(ctx, f, st, o.measure)
	}
	for {
		if err != nil {
			return err
		}
		if redraw {
			err = scr.redraw(textOf(st))
		} else {
			err = say(s.out, o.form, st)
		}
		if err != nil || !o.watch || st.Phase.Ended() {
			return err
		}
		before := clock.System.Now()
		if clock.Sleep(ctx, clock.System, watchEvery) != nil {
			return nil //nolint:nilerr // asked to stop
		}
		if !redraw && o.form == formText {
			_, _ = s.out.WriteString("\n")
		}
		st, err = readAgain(ctx, f, st, clock.System.Now().Sub(before))
	}
}

// moves tells whether there is a speed to be measured.
func (s *jobStatus) moves() bool {
	return s.Phase == etcdqueue.PhaseTraining && len(s.Trainers) > 0 && s.counted.known
}

// readAgain reads the status, and measures against the one before.
func readAgain(ctx context.Context, f *found, before *jobStatus, took time.Duration) (*jobStatus, error) {
	s, err := readStatus(ctx, f)
	if err == nil && s.Phase == etcdqueue.PhaseTraining {
		s.measure(before, took)
	}
	return s, err
}

// measure works out speed and time to the end from the batches that the ledgers
// of both looks have counted. After a restore a ledger may be behind an earlier
// look: then nothing was measured.
func (s *jobStatus) measure(before *jobStatus, took time.Duration) {
	batches := s.counted.batches - before.counted.batches
	if !s.counted.known || !before.counted.known || batches < 0 || took <= 0 {
		return
	}
	rate := float64(batches) * s.counted.perBatch / took.Seconds()
	s.RecordsPerSecond = &rate
	if rate <= 0 || s.Queue.Complete == 0 || s.Progress <= 0 {
		return
	}
	perChunk := float64(s.Queue.Records) / float64(s.Queue.Complete)
	left := max(0, s.Chunks*int64(s.Passes)-s.Queue.Complete-s.Queue.Failed)
	eta := float64(left) * perChunk / rate
	s.ETASeconds = &eta
}

func textOf(a answer) string {
	var b strings.Builder
	a.text(&b)
	return b.String()
}
