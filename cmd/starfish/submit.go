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
	"starfish/internal/store"
	"starfish/job"
	"starfish/reader"
	"starfish/trainer"
	"starfish/trainer/model"
)

// submitted is the answer of `starfish submit`.
type submitted struct {
	about
	Created bool  `json:"created"` // false: it was there with the same spec
	Passes  int   `json:"passes"`
	Chunks  int64 `json:"chunks"` // of one pass
	Shards  int   `json:"shards"`
	// Files of the first pass, and those of them that are one chunk each because
	// they are compressed; null where the list is not stored.
	Files   *int          `json:"files"`
	Unsplit []unsplitFile `json:"unsplit_files"`
}

func submitCommand(s streams) *cobra.Command {
	var at cli.Etcd
	var logging cli.Logging
	var spec, form string
	var sets []string
	c := &cobra.Command{
		Use:   "submit -f SPEC.yaml",
		Short: "Create a job for pservers and trainers to work on",
		Long: "Creates the job that a spec describes in etcd, as `pserver --spec` and `trainer --spec` do; processes that\n" +
			"are started with --job wait for it. A job that is there with the same spec is left as it is; with\n" +
			"another spec the command ends with code 2 and the difference. Only built-in models can be submitted:\n" +
			"a job with a model of your own is created by its trainers (--spec).",
		Example: "  starfish submit -f adult.yaml --etcd-endpoints 10.0.0.1:2379\n" +
			"  starfish submit -f adult.yaml --set train.passes=20 --etcd-endpoints 10.0.0.1:2379 -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			if spec == "" {
				return cli.Usage("-f is missing: name the file of the job's spec")
			}
			if err := checkForm(form); err != nil {
				return err
			}
			log, err := logging.Logger(s.err)
			if err != nil {
				return err
			}
			parsed, err := job.ReadSpec(spec, sets, job.Models(model.Names()...), job.CheckFiles())
			if err != nil {
				return cli.Usage("%w", err)
			}
			st, closeStore, err := at.Connect(c.Context(), log)
			if err != nil {
				return err
			}
			defer closeStore()
			a, err := submitJob(c.Context(), store.Prefixed(st, job.Prefix(parsed.Job)), parsed)
			if err != nil {
				return err
			}
			return say(s.out, form, a)
		},
	}
	fs := c.Flags()
	fs.StringVarP(&spec, "file", "f", "", "file of the job's spec (required)")
	fs.StringArrayVar(&sets, "set", nil, "path=value overrides one field of the spec; may be repeated")
	at.Register(fs)
	logging.Register(fs)
	registerForm(c, &form)
	return c
}

// submitJob creates the job below st, unless it is there.
func submitJob(ctx context.Context, st store.Store, spec *job.Spec) (*submitted, error) {
	m, err := model.New(spec)
	if err != nil {
		return nil, cli.Usage("%w", err)
	}
	j, err := trainer.CreateJob(ctx, st, spec, m)
	if errors.Is(err, job.ErrSpecDiffers) {
		err = cli.Usage("%w", err)
	}
	if err != nil {
		return nil, err
	}
	q, err := openQueue(st, spec, clock.System)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	a := &submitted{about: aboutJob(j), Created: j.Created, Passes: spec.Train.Passes, Shards: spec.Shards}
	d, err := readData(ctx, q)
	a.Chunks, a.Files, a.Unsplit = d.chunks, d.files, d.unsplit
	return a, err
}

func (a *submitted) text(b *strings.Builder) {
	if !a.Created {
		fmt.Fprintf(b, "job %s is there already, with the same spec (%s)\n", a.Job, a.UUID)
		return
	}
	fmt.Fprintf(b, "job %s submitted (%s): %s of %s, %s\n", a.Job, a.UUID,
		plural(int64(a.Passes), "pass", "passes"), plural(a.Chunks, "chunk", "chunks"), plural(int64(a.Shards), "shard", "shards"))
	sayUnsplit(b, "", a.Unsplit)
	fmt.Fprintf(b, "pservers and trainers that are started with --job %s work on it\n", a.Job)
}

// unsplitFile is a compressed file: one chunk, whatever its size.
type unsplitFile struct {
	Path string `json:"path"`
	Size int64  `json:"size"` // compressed, in bytes
}

// sayUnsplit says that compressed files are one chunk.
func sayUnsplit(b *strings.Builder, label string, files []unsplitFile) {
	if len(files) == 0 {
		return
	}
	largest := files[0]
	for _, f := range files {
		if f.Size > largest.Size {
			largest = f
		}
	}
	if len(files) == 1 {
		fmt.Fprintf(b, "%s%s is compressed and so is one chunk (%s)\n", label, largest.Path, bytesText(largest.Size))
		return
	}
	fmt.Fprintf(b, "%s%d files are compressed and so are one chunk each, the largest %s (%s)\n",
		label, len(files), largest.Path, bytesText(largest.Size))
}

// jobData is what the store says of a job's data.
type jobData struct {
	chunks  int64 // of one pass
	files   *int
	unsplit []unsplitFile
}

// readData reads the manifest of the current pass.
func readData(ctx context.Context, q *etcdqueue.Queue) (jobData, error) {
	d := jobData{unsplit: []unsplitFile{}}
	m, err := currentManifest(ctx, q)
	if err != nil {
		return d, err
	}
	d.chunks = m.Chunks
	plan, err := reader.ParseManifest(m.Files)
	if err != nil {
		return d, nil //nolint:nilerr // a list that is too long is not stored
	}
	n := len(plan.Files)
	d.files = &n
	for _, f := range plan.Unsplit() {
		d.unsplit = append(d.unsplit, unsplitFile{f.Path, f.Size})
	}
	return d, nil
}

// currentManifest reads the manifest of the current pass, which may be over and
// removed between two reads.
func currentManifest(ctx context.Context, q *etcdqueue.Queue) (m etcdqueue.Manifest, err error) {
	for range 5 {
		var s etcdqueue.State
		if s, err = q.State(ctx); err != nil {
			return m, err
		}
		if m, err = q.Manifest(ctx, s.Pass); !errors.Is(err, etcdqueue.ErrNoPass) {
			return m, err
		}
	}
	return m, err
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return thousands(n) + " " + many
}

// bytesText is a number of bytes for people.
func bytesText(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, name := float64(n)/unit, "KiB"
	for _, next := range []string{"MiB", "GiB", "TiB"} {
		if value < unit {
			break
		}
		value, name = value/unit, next
	}
	return fmt.Sprintf("%.1f %s", value, name)
}
