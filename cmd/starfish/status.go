package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sort"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"starfish/checkpoint"
	"starfish/etcdqueue"
	"starfish/internal/cli"
	"starfish/internal/clock"
	"starfish/internal/membership"
	"starfish/internal/store"
	"starfish/job"
)

// jobStatus is what `starfish status` says, also as JSON.
type jobStatus struct {
	Job      string           `json:"job"`
	UUID     string           `json:"uuid"`
	Phase    etcdqueue.Phase  `json:"phase"`
	Reason   string           `json:"reason,omitempty"`
	Pass     int              `json:"pass"` // from 0
	Passes   int              `json:"passes"`
	Floor    int              `json:"floor"`
	Reopened []int            `json:"reopened"`
	Queue    etcdqueue.Totals `json:"queue"`
	Shards   []shardStatus    `json:"shards"`
	Pservers []memberStatus   `json:"pservers"`
	Trainers []memberStatus   `json:"trainers"`
	Result   *job.Result      `json:"result,omitempty"`
}

// shardStatus is one shard: who owns it, and its newest checkpoint.
type shardStatus struct {
	Shard      int    `json:"shard"`
	Owner      string `json:"owner"` // empty: nobody
	Address    string `json:"address,omitempty"`
	Generation int64  `json:"generation"`
	// Checkpoints are listed; the newest has these batches and passes.
	Checkpoints int   `json:"checkpoints"`
	Batches     int64 `json:"batches"`
	Passes      int   `json:"passes"`
	SavedAt     int64 `json:"saved_at,omitempty"` // UnixNano by the saver's clock
}

type memberStatus struct {
	Name        string `json:"name"`
	Incarnation string `json:"incarnation"`
	Address     string `json:"address"`
	Version     string `json:"version"`
}

func statusCommand(s streams) *cobra.Command {
	var t target
	var form string
	var watch bool
	c := &cobra.Command{
		Use:     "status",
		Short:   "Say how a job stands",
		Example: "  starfish status --dir run1\n  starfish status --etcd-endpoints 10.0.0.1:2379 --job adult -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			if form != "text" && form != "json" {
				return cli.Usage("-o %q is neither text nor json", form)
			}
			log, err := t.Logger(s.err)
			if err != nil {
				return err
			}
			f, err := t.open(c.Context(), log)
			if err != nil {
				return err
			}
			defer f.close()
			return showStatus(c.Context(), f, s.out, form, watch)
		},
	}
	t.register(c.Flags())
	c.Flags().StringVarP(&form, "output", "o", "text", "form of the output: text or json")
	c.Flags().BoolVar(&watch, "watch", false, "say it again every 2 s until the job has ended")
	return c
}

// watchEvery is the rhythm of `status --watch`.
const watchEvery = 2 * time.Second

func showStatus(ctx context.Context, f *found, w io.Writer, form string, watch bool) error {
	for {
		st, err := readStatus(ctx, f)
		if err != nil {
			return err
		}
		if form == "json" {
			err = json.NewEncoder(w).Encode(st)
		} else {
			err = st.write(w)
		}
		if err != nil || !watch || st.Phase.Ended() {
			return err
		}
		if clock.Sleep(ctx, clock.System, watchEvery) != nil {
			return nil //nolint:nilerr // asked to stop
		}
	}
}

// readStatus reads what the store says of a job.
func readStatus(ctx context.Context, f *found) (*jobStatus, error) {
	fo, err := newFollower(f.store, f.job.Spec, clock.System)
	if err != nil {
		return nil, err
	}
	defer fo.close()
	totals, state, err := fo.queue.Totals(ctx)
	if err != nil {
		return nil, err
	}
	st := &jobStatus{Job: f.job.Spec.Job, UUID: f.job.UUID.String(), Phase: state.Phase, Reason: cli.Plain(state.Reason),
		Pass: state.Pass, Passes: f.job.Spec.Train.Passes, Floor: state.Floor, Reopened: state.Reopened, Queue: totals}
	if st.Shards, err = readShards(ctx, f); err != nil {
		return nil, err
	}
	if st.Pservers, err = readMembers(ctx, f.store, membership.PServers); err != nil {
		return nil, err
	}
	if st.Trainers, err = readMembers(ctx, f.store, membership.Trainers); err != nil {
		return nil, err
	}
	if state.Phase == etcdqueue.PhaseComplete {
		st.Result, err = readResult(ctx, f.store)
	}
	return st, err
}

func readShards(ctx context.Context, f *found) ([]shardStatus, error) {
	view, err := membership.ReadView(ctx, f.store)
	if err != nil {
		return nil, err
	}
	metas, _, err := checkpoint.ListAll(ctx, f.store, f.job.Parameters.Shards)
	if err != nil {
		return nil, err
	}
	shards := make([]shardStatus, len(view.Shards))
	for i, o := range view.Shards {
		s := shardStatus{Shard: i, Owner: o.Name, Address: o.Address, Generation: o.Generation}
		if i < len(metas) && len(metas[i]) > 0 {
			m := metas[i][0]
			s.Checkpoints, s.Batches, s.Passes, s.SavedAt = len(metas[i]), m.Batches, m.Passes, m.Timestamp
		}
		shards[i] = s
	}
	return shards, nil
}

func readMembers(ctx context.Context, st store.Store, role string) ([]memberStatus, error) {
	roster, err := membership.ReadRoster(ctx, st, role)
	if err != nil {
		return nil, err
	}
	members := []memberStatus{}
	for name, m := range roster.Members {
		members = append(members, memberStatus{Name: name, Incarnation: m.Incarnation, Address: m.Address, Version: m.Version})
	}
	sort.Slice(members, func(i, j int) bool { return members[i].Name < members[j].Name })
	return members, nil
}

// write is the status for people.
func (s *jobStatus) write(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "job      %s (%s)\n", s.Job, s.UUID)
	fmt.Fprintf(&b, "phase    %s", s.Phase)
	if s.Reason != "" {
		fmt.Fprintf(&b, ": %s", s.Reason)
	}
	fmt.Fprintf(&b, ", pass %d of %d\n", min(s.Pass+1, s.Passes), s.Passes)
	q := s.Queue
	fmt.Fprintf(&b, "chunks   %s todo, %s pending, %s complete, %s failed; %s takes, %s requeued, %s reopened\n", thousands(q.Todo),
		thousands(q.Pending), thousands(q.Complete), thousands(q.Failed), thousands(q.Takes), thousands(q.Requeued), thousands(q.Reopened))
	fmt.Fprintf(&b, "records  %s in %s batches\n\n", thousands(q.Records), thousands(q.Batches))
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SHARD\tOWNER\tADDRESS\tGENERATION\tCHECKPOINTS\tNEWEST HAS")
	for _, sh := range s.Shards {
		owner := sh.Owner
		if owner == "" {
			owner = "(nobody)"
		}
		saved := "-"
		if sh.Checkpoints > 0 {
			saved = fmt.Sprintf("%s batches", thousands(sh.Batches))
		}
		fmt.Fprintf(t, "%d\t%s\t%s\t%d\t%d\t%s\n", sh.Shard, owner, sh.Address, sh.Generation, sh.Checkpoints, saved)
	}
	fmt.Fprintln(t, "\nPROCESS\tADDRESS\tVERSION\tINCARNATION")
	for _, m := range append(append([]memberStatus{}, s.Pservers...), s.Trainers...) {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", m.Name, m.Address, m.Version, m.Incarnation)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if s.Result != nil {
		b.WriteByte('\n')
		summary(&b, s.Result)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
