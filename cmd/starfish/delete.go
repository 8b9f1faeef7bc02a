package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"starfish/checkpoint"
	"starfish/etcdqueue"
	"starfish/internal/cli"
	"starfish/internal/clock"
	"starfish/internal/membership"
	"starfish/internal/store"
	"starfish/job"
)

// deleteFlags are the flags of `starfish delete`.
type deleteFlags struct {
	question
	yes, force, checkpoints bool
	directory               string
}

// deleted is the answer of `starfish delete`.
type deleted struct {
	V    int    `json:"v"`
	Job  string `json:"job"`
	UUID string `json:"uuid,omitempty"`
	// Files of checkpoints were removed; null if that was not asked for.
	Files *int `json:"files"`
}

func deleteCommand(s streams) *cobra.Command {
	var o deleteFlags
	c := &cobra.Command{
		Use:   "delete JOB",
		Args:  cobra.ArbitraryArgs,
		Short: "Remove a job from etcd, and its checkpoints if asked to",
		Long: "Removes all records of a job from etcd; with --checkpoints also its checkpoint files. It asks before it does so,\n" +
			"unless --yes is given, and refuses while processes of the job are registered, unless --force is given: then\n" +
			"these end with code 1. The records go in bounded steps, the spec last; a deletion that was interrupted is\n" +
			"repeated by the same command.",
		Example: "  starfish delete adult --etcd-endpoints 10.0.0.1:2379\n  starfish delete adult --yes --checkpoints --etcd-endpoints 10.0.0.1:2379",
		ValidArgsFunction: func(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			return o.completeJobs(c, args, word)
		},
		RunE: func(c *cobra.Command, args []string) error {
			if err := o.name(args); err != nil {
				return err
			}
			if err := checkForm(o.form); err != nil {
				return err
			}
			log, err := o.Logger(s.err)
			if err != nil {
				return err
			}
			at, err := o.reach(c.Context(), log)
			if err != nil {
				return err
			}
			defer at.close()
			a, err := o.remove(c.Context(), at, s)
			if err != nil {
				return err
			}
			return say(s.out, o.form, a)
		},
	}
	o.register(c)
	fs := c.Flags()
	fs.BoolVar(&o.yes, "yes", false, "do not ask")
	fs.BoolVar(&o.force, "force", false, "delete although processes of the job are registered")
	fs.BoolVar(&o.checkpoints, "checkpoints", false, "remove the job's checkpoint files too")
	fs.StringVar(&o.directory, "checkpoint-dir", "", "directory of the checkpoints (default: that of --dir, or the spec's checkpoint.dir)")
	return c
}

// name takes the job's name from the argument.
func (o *deleteFlags) name(args []string) error {
	if len(args) == 1 && (o.job == "" || o.job == args[0]) {
		o.job = args[0]
	} else if len(args) > 0 || o.job == "" {
		return cli.Usage("name one job to delete; `starfish jobs` lists them")
	}
	if err := job.CheckName(o.job); err != nil {
		return cli.Usage("%w", err)
	}
	return nil
}

// remove removes the job, of which there may be only remains.
func (o *deleteFlags) remove(ctx context.Context, at *place, s streams) (*deleted, error) {
	st := store.Prefixed(at.store, job.Prefix(o.job))
	kvs, err := store.Read(ctx, st, store.Range("", "\x00", 1), store.Get(job.KeySpec))
	if err != nil {
		return nil, err
	}
	if len(kvs.KVs[0]) == 0 {
		return nil, cli.Usage("there is no job %q%s", o.job, nearJob(ctx, at.store, o.job))
	}
	r := remover{st: st, guard: store.Cmp{Key: job.KeySpec, Target: store.CreateRevision, Rev: kvs.First(1).CreateRev}}
	a := &deleted{V: answerVersion, Job: o.job}
	j, err := job.Load(ctx, st)
	if err == nil {
		a.UUID = j.UUID.String()
	}
	dir := ""
	if o.checkpoints {
		if err != nil {
			return nil, cli.Usage("--checkpoints: the job's records cannot be read: %w", err)
		}
		f := &found{job: j, checkpoints: at.checkpoints}
		if dir = o.directory; dir == "" {
			dir = f.directory()
		}
		if err := checkpoint.CheckMarker(checkpoint.OS, dir, j.UUID); err != nil {
			return nil, cli.Usage("--checkpoints: %w", err)
		}
	}
	if err := o.allowed(ctx, r, s, dir); err != nil {
		return nil, err
	}
	if err := r.end(ctx); err != nil {
		return nil, err
	}
	if dir != "" {
		n, err := checkpoint.Erase(checkpoint.OS, dir, j.UUID)
		if err != nil {
			return nil, err
		}
		_ = os.Remove(dir) // if nothing else is in it
		a.Files = &n
	}
	return a, r.rest(ctx)
}

// allowed makes sure that the job may be deleted.
func (o *deleteFlags) allowed(ctx context.Context, r remover, s streams, dir string) error {
	members, err := r.members(ctx)
	if err != nil {
		return err
	}
	if len(members) > 0 && !o.force {
		return cli.Usage("%s registered: %s; stop them, or --force", plural(int64(len(members)), "process of the job is", "processes of the job are"),
			strings.Join(members[:min(8, len(members))], ", "))
	}
	if o.yes {
		return nil
	}
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return cli.Usage("--yes is missing: a deletion cannot be taken back")
	}
	what := "its records"
	if dir != "" {
		what += " and the checkpoints in " + dir
	}
	fmt.Fprintf(s.err, "Delete job %s, %s? [y/N] ", o.job, what)
	line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	if word := strings.ToLower(strings.TrimSpace(line)); word != "y" && word != "yes" {
		return cli.Usage("not deleted")
	}
	return nil
}

func (a *deleted) text(b *strings.Builder) {
	fmt.Fprintf(b, "job %s is deleted", a.Job)
	if a.Files != nil {
		fmt.Fprintf(b, ", with %s", plural(int64(*a.Files), "checkpoint file", "checkpoint files"))
	}
	b.WriteByte('\n')
}

// remover removes the records of a job. Each of its transactions compares the
// create revision of `spec`, so that a job that was submitted anew is never
// touched; `spec` goes last, so that none can be before all is gone.
type remover struct {
	st    store.Store
	guard store.Cmp
}

// leaveTime is how long processes of a job that was ended may take to leave.
const leaveTime = 10 * time.Second

// end ends the job for its processes: from then on nothing is taken, for the
// passes are gone, and whoever follows `state` ends. It waits for them a while.
func (r remover) end(ctx context.Context) error {
	q, err := etcdqueue.New(etcdqueue.Config{Store: r.st})
	if err != nil {
		return err
	}
	defer q.Close()
	err = q.Finish(ctx, etcdqueue.PhaseFailed, "it is being deleted", nil, r.guard)
	for _, fine := range []error{etcdqueue.ErrPhase, etcdqueue.ErrNoQueue, etcdqueue.ErrFormat} {
		err = ignore(err, fine)
	}
	if err != nil {
		return fmt.Errorf("end the job: %w", err)
	}
	for until := clock.System.Now().Add(leaveTime); ; {
		members, err := r.members(ctx)
		if err != nil || len(members) == 0 || clock.System.Now().After(until) {
			return err
		}
		if err := clock.Sleep(ctx, clock.System, savedEvery); err != nil {
			return err
		}
	}
}

// members are the names of the registered processes.
func (r remover) members(ctx context.Context) ([]string, error) {
	var names []string
	for _, role := range []string{membership.PServers, membership.Trainers} {
		kvs, _, err := store.List(ctx, r.st, role+"/", store.PrefixEnd(role+"/"))
		if err != nil {
			return nil, err
		}
		for _, kv := range kvs {
			names = append(names, strings.TrimPrefix(kv.Key, role+"/"))
		}
	}
	return names, nil
}

// removedAtOnce bounds the records that one transaction removes.
const removedAtOnce = 500

var errReplaced = errors.New("another job was submitted under its name meanwhile")

// rest removes everything, a part at a time, and the spec with the last part.
func (r remover) rest(ctx context.Context) error {
	passes := store.DeleteRange("passes/", store.PrefixEnd("passes/")) // nothing is taken without
	if err := r.do(ctx, passes); err != nil {
		return err
	}
	for _, part := range []string{"checkpoints/", "failed/", "queue/"} {
		for {
			read, err := store.Read(ctx, r.st, store.Range(part, store.PrefixEnd(part), removedAtOnce))
			if err != nil {
				return err
			}
			kvs := read.KVs[0]
			if len(kvs) == 0 {
				break
			}
			if err := r.do(ctx, store.DeleteRange(part, kvs[len(kvs)-1].Key+"\x00")); err != nil {
				return err
			}
		}
	}
	return r.do(ctx, store.DeleteRange("", "\x00"))
}

func (r remover) do(ctx context.Context, op store.Op) error {
	answer, err := r.st.Txn(ctx, store.Txn{If: []store.Cmp{r.guard}, Then: []store.Op{op}})
	if err == nil && !answer.Succeeded {
		err = errReplaced
	}
	if err != nil {
		return fmt.Errorf("delete the job: %w", err)
	}
	return nil
}
