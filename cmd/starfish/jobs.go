package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"starfish/etcdqueue"
	"starfish/internal/cli"
	"starfish/internal/clock"
	"starfish/internal/spell"
	"starfish/internal/store"
	"starfish/job"
)

// jobList is the answer of `starfish jobs`.
type jobList struct {
	V    int       `json:"v"`
	Jobs []jobLine `json:"jobs"` // by name
}

// jobLine is one job of the list.
type jobLine struct {
	Job    string          `json:"job"`
	UUID   string          `json:"uuid,omitempty"`
	Phase  etcdqueue.Phase `json:"phase,omitempty"`
	Reason string          `json:"reason,omitempty"`
	Pass   int             `json:"pass"` // from 0
	Passes int             `json:"passes"`
	// Progress is the part of the work that is done, 0 … 1.
	Progress float64 `json:"progress"`
	Records  int64   `json:"records"`
	Pservers int     `json:"pservers"`
	Trainers int     `json:"trainers"`
	// Error says why nothing more is known of it.
	Error string `json:"error,omitempty"`
}

func jobsCommand(s streams) *cobra.Command {
	var t target
	var form string
	c := &cobra.Command{
		Use:     "jobs",
		Short:   "List the jobs of an etcd",
		Example: "  starfish jobs --etcd-endpoints 10.0.0.1:2379\n  starfish jobs --dir run1 -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := checkForm(form); err != nil {
				return err
			}
			log, err := t.Logger(s.err)
			if err != nil {
				return err
			}
			p, err := t.reach(c.Context(), log)
			if err != nil {
				return err
			}
			defer p.close()
			list, err := listJobs(c.Context(), p)
			if err != nil {
				return err
			}
			return say(s.out, form, list)
		},
	}
	t.registerPlace(c.Flags())
	registerForm(c, &form)
	return c
}

// allJobs is where the keys of all jobs lie.
const allJobs = "/starfish/"

// jobNames lists the names below which there are keys. It leaps from job to job
// and reads one key of each.
func jobNames(ctx context.Context, st store.Store) ([]string, error) {
	var names []string
	for next, end := allJobs, store.PrefixEnd(allJobs); ; {
		r, err := store.Read(ctx, st, store.Range(next, end, 1))
		if err != nil {
			return nil, fmt.Errorf("list the jobs: %w", err)
		}
		kv := r.First(0)
		if !kv.Exists() {
			return names, nil
		}
		name, _, below := strings.Cut(strings.TrimPrefix(kv.Key, allJobs), "/")
		if !below { // not a job's
			next = kv.Key + "\x00"
			continue
		}
		names = append(names, name)
		next = store.PrefixEnd(job.Prefix(name))
	}
}

// nearJob is a hint for a name that no job has, as the rest of a sentence.
func nearJob(ctx context.Context, st store.Store, name string) string {
	names, _ := jobNames(ctx, st)
	if near := spell.Nearest(name, names); near != "" {
		return fmt.Sprintf(", did you mean %q?", near)
	}
	return ""
}

func listJobs(ctx context.Context, p *place) (*jobList, error) {
	names, err := jobNames(ctx, p.store)
	if err != nil {
		return nil, err
	}
	list := &jobList{V: answerVersion, Jobs: []jobLine{}}
	for _, name := range names {
		line, err := lineOf(ctx, store.Prefixed(p.store, job.Prefix(name)), name)
		if err != nil {
			return nil, err
		}
		list.Jobs = append(list.Jobs, line)
	}
	return list, nil
}

// lineOf reads one job. What cannot be read of it is said in the line: the others
// are listed all the same.
func lineOf(ctx context.Context, st store.Store, name string) (jobLine, error) {
	line := jobLine{Job: name}
	err := line.read(ctx, st)
	if ctx.Err() != nil {
		return line, context.Cause(ctx)
	}
	switch {
	case errors.Is(err, job.ErrNoJob), errors.Is(err, etcdqueue.ErrNoQueue):
		line.Error = "only remains of a job: `starfish delete` removes them"
	case err != nil:
		line.Error = cli.Plain(err.Error())
	}
	return line, nil
}

func (l *jobLine) read(ctx context.Context, st store.Store) error {
	j, err := job.Load(ctx, st)
	if err != nil {
		return err
	}
	l.UUID, l.Passes = j.UUID.String(), j.Spec.Train.Passes
	fo, err := newFollower(st, j.Spec, clock.System)
	if err != nil {
		return err
	}
	defer fo.close()
	s, state, err := fo.look(ctx)
	if err != nil {
		return err
	}
	l.Phase, l.Reason, l.Pass = state.Phase, cli.Plain(state.Reason), state.Pass
	l.Progress, l.Records, l.Pservers, l.Trainers = s.fraction(), s.records, s.pservers, s.trainers
	return nil
}

func (l *jobList) text(b *strings.Builder) {
	if len(l.Jobs) == 0 {
		b.WriteString("no jobs\n")
		return
	}
	table(b, func(row func(...string)) {
		row("JOB", "PHASE", "PASS", "DONE", "RECORDS", "PSERVERS", "TRAINERS")
		for _, j := range l.Jobs {
			if j.Error != "" {
				row(j.Job, j.Error)
				continue
			}
			row(j.Job, string(j.Phase), fmt.Sprintf("%d of %d", min(j.Pass+1, j.Passes), j.Passes), percent(j.Progress),
				thousands(j.Records), fmt.Sprint(j.Pservers), fmt.Sprint(j.Trainers))
		}
	})
}

// percent is a part of a whole; not 100 % before it is.
func percent(part float64) string {
	return fmt.Sprintf("%d%%", int(part*100))
}
