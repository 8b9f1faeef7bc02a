package job_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"starfish/internal/store"
	"starfish/internal/store/fake"
	"starfish/internal/store/storetest"
	"starfish/job"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bundle is a job that is not created yet.
type bundle struct {
	spec   *job.Spec
	params job.Parameters
	ops    []store.Op
}

func setup(t *testing.T, sets ...string) bundle {
	t.Helper()
	spec := parse(t, full, sets...)
	params, err := job.Resolve(spec, []job.Parameter{{Name: "bias"}, {Name: "weights", Sparse: true, Dim: 1}})
	require.NoError(t, err)
	return bundle{spec, params, []store.Op{store.Put("state", []byte("s"), 0), store.Put("passes/000000", []byte("p"), 0)}}
}

func (b bundle) create(ctx context.Context, st store.Store) (job.Job, error) {
	return job.Create(ctx, st, b.spec, b.params, b.ops...)
}

func TestCreateAndLoad(t *testing.T) {
	t.Parallel()
	for name, st := range map[string]store.Store{
		"fake": store.Prefixed(fake.New(fake.Options{}), job.Prefix("adult")),
		"etcd": store.Prefixed(storetest.Embedded(t), job.Prefix("adult")),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, b := t.Context(), setup(t)
			_, err := job.Load(ctx, st)
			require.ErrorIs(t, err, job.ErrNoJob)

			made, err := b.create(ctx, st)
			require.NoError(t, err)
			require.True(t, made.Created)
			got, err := job.Load(ctx, st)
			require.NoError(t, err)
			require.Equal(t, made.UUID, got.UUID)
			require.Equal(t, made.SpecRev, got.SpecRev)
			require.Equal(t, b.params, got.Parameters)
			require.Equal(t, string(b.spec.JSON()), string(got.Spec.JSON()))
			r, err := store.Read(ctx, st, store.Get("spec"), store.Get("parameters"), store.Get("state"), store.Get("passes/000000"))
			require.NoError(t, err)
			for i := range 4 {
				require.Equal(t, made.SpecRev, r.First(i).CreateRev, "all in one transaction")
			}
			require.Equal(t, "s", string(r.First(2).Value))

			again, err := b.create(ctx, st)
			require.NoError(t, err)
			require.False(t, again.Created)
			require.Equal(t, made.UUID, again.UUID)
			require.Equal(t, made.SpecRev, again.SpecRev)

			other := setup(t, "train.batch=128")
			_, err = other.create(ctx, st)
			require.ErrorIs(t, err, job.ErrSpecDiffers)
			require.ErrorContains(t, err, "train.batch: 64 in the job, 128 here")
			require.Equal(t, 2, job.ExitCode(err))
			require.ErrorIs(t, got.Same(other.spec), job.ErrSpecDiffers)
			require.NoError(t, got.Same(setup(t, "run.pservers=9").spec))

			// The same spec, but a program whose model has other parameters.
			other = setup(t)
			other.params.List = other.params.List[:1]
			_, err = other.create(ctx, st)
			require.ErrorIs(t, err, job.ErrSpecDiffers)
			require.ErrorContains(t, err, `parameter 1: {"name":"weights"`)
			require.ErrorContains(t, err, "in the job, none here")

			ok, err := st.Txn(ctx, store.Txn{If: []store.Cmp{got.Guard()}})
			require.NoError(t, err)
			require.True(t, ok.Succeeded)
			_, err = st.Txn(ctx, store.Txn{Then: []store.Op{store.DeleteRange("\x00", "\x00")}})
			require.NoError(t, err)
			next, err := b.create(ctx, st)
			require.NoError(t, err)
			require.True(t, next.Created)
			require.NotEqual(t, made.UUID, next.UUID)
			ok, err = st.Txn(ctx, store.Txn{If: []store.Cmp{got.Guard()}})
			require.NoError(t, err)
			require.False(t, ok.Succeeded, "a job that was submitted again is another job")
		})
	}
}

// TestCreateRace: of 20 processes one creates the job and all agree on it.
func TestCreateRace(t *testing.T) {
	t.Parallel()
	st := store.Prefixed(storetest.Embedded(t), job.Prefix("race"))
	jobs, errs := make([]job.Job, 20), make([]error, 20)
	var group sync.WaitGroup
	for i := range jobs {
		b := setup(t)
		group.Go(func() { jobs[i], errs[i] = b.create(t.Context(), st) })
	}
	group.Wait()
	created := 0
	for i, j := range jobs {
		require.NoError(t, errs[i])
		require.Equal(t, jobs[0].UUID, j.UUID)
		require.Equal(t, jobs[0].SpecRev, j.SpecRev)
		if j.Created {
			created++
		}
	}
	require.Equal(t, 1, created)
}

var errCut = errors.New("cut off")

// TestCreatorDies: whether the creator's request or its answer is lost, and
// whether it comes back or not, the job exists completely or not at all.
func TestCreatorDies(t *testing.T) {
	t.Parallel()
	for losses := 1; losses <= 4; losses++ {
		for _, reply := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d lost, reply %v", losses, reply), func(t *testing.T) {
				t.Parallel()
				backing := fake.New(fake.Options{})
				left := losses
				cut := func(op, key string) error {
					if strings.HasSuffix(key, "/spec") && op == "put" && left > 0 {
						left--
						return errCut
					}
					return nil
				}
				client := backing.Client("creator")
				if reply {
					client.FailAfter(cut)
				} else {
					client.Fail(cut)
				}
				b := setup(t)
				made, err := b.create(t.Context(), store.Prefixed(client, job.Prefix("adult")))
				st := store.Prefixed(backing, job.Prefix("adult"))
				got, loadErr := job.Load(t.Context(), st)
				if losses > 2 { // it gave up, or was killed
					require.ErrorIs(t, err, errCut)
					require.ErrorIs(t, err, job.ErrUnanswered)
				} else {
					require.NoError(t, err)
					require.True(t, made.Created, "it finds out that it was itself")
					require.Equal(t, got.UUID, made.UUID)
					require.Equal(t, got.SpecRev, made.SpecRev)
				}
				if losses > 2 && !reply {
					require.ErrorIs(t, loadErr, job.ErrNoJob)
					require.Empty(t, backing.Dump())
				} else {
					require.NoError(t, loadErr)
					require.Len(t, backing.Dump(), 4)
				}
				next, err := b.create(t.Context(), st)
				require.NoError(t, err)
				require.Equal(t, loadErr != nil, next.Created)
			})
		}
	}
}

func TestCreateRefusesBrokenParameters(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.params.List = nil
	backing := fake.New(fake.Options{})
	_, err := b.create(t.Context(), backing)
	require.ErrorContains(t, err, "0 of them")
	require.Empty(t, backing.Dump())
}

// TestBrokenRecords: what another version or a stray hand wrote is refused
// clearly.
func TestBrokenRecords(t *testing.T) {
	t.Parallel()
	spec := string(setup(t).spec.JSON())
	good := `{"v":1,"seed":1,"shards":4,"list":[{"name":"b","init":{"kind":"zeros"},"optimizer":{"type":"sgd","learning_rate":1},"reduction":"sum","divisor":1}]}`
	const id = `"uuid":"6f3c7c9e-6a38-4bcb-8d10-8a0f2cf2f0aa"`
	for name, tc := range map[string]struct{ spec, params, want string }{
		"good":              {`{"v":1,` + id + `,"spec":` + spec + `}`, good, ""},
		"later version":     {`{"v":2,"uuid":7}`, good, "the record spec has version 2; this program knows 1"},
		"no JSON":           {`{`, good, "the record spec is broken"},
		"no uuid":           {`{"v":1,"uuid":"x","spec":{}}`, good, "the record spec is broken"},
		"later field":       {`{"v":1,` + id + `,"spec":{"job":"a","flavour":1}}`, good, "flavour: unknown field"},
		"no parameters":     {`{"v":1,` + id + `,"spec":` + spec + `}`, ``, "the record parameters is broken"},
		"later parameters":  {`{"v":1,` + id + `,"spec":` + spec + `}`, strings.Replace(good, `"v":1`, `"v":3`, 1), "version 3 is not known"},
		"unknown optimizer": {`{"v":1,` + id + `,"spec":` + spec + `}`, strings.Replace(good, "sgd", "magic", 1), `b: the unknown optimizer "magic"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := fake.New(fake.Options{})
			_, err := st.Txn(t.Context(), store.Txn{Then: []store.Op{
				store.Put("spec", []byte(tc.spec), 0), store.Put("parameters", []byte(tc.params), 0)}})
			require.NoError(t, err)
			_, err = job.Load(t.Context(), st)
			_, waitErr := job.Wait(t.Context(), st)
			if tc.want == "" {
				require.NoError(t, err)
				require.NoError(t, waitErr)
				return
			}
			require.ErrorContains(t, err, tc.want)
			require.ErrorContains(t, waitErr, tc.want, "waiting longer would not help")
		})
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backing := fake.New(fake.Options{})
		client := backing.Client("waiter")
		st := store.Prefixed(client, job.Prefix("adult"))
		client.Fail(func(string, string) error { return errCut }) // etcd is not there at first
		var got job.Job
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			got, err = job.Wait(t.Context(), st)
		}()
		time.Sleep(10 * time.Second) // virtual
		client.Fail(nil)
		time.Sleep(10 * time.Second)
		client.Fail(func(op, _ string) error { // the watch breaks
			if op == "watch" {
				return errCut
			}
			return nil
		})
		backing.Compact(backing.Revision())
		time.Sleep(10 * time.Second)
		select {
		case <-done:
			t.Fatal("there is no job yet", err)
		default:
		}
		start := time.Now()
		made, createErr := setup(t).create(t.Context(), store.Prefixed(backing, job.Prefix("adult")))
		require.NoError(t, createErr)
		<-done
		require.NoError(t, err)
		require.Equal(t, made.UUID, got.UUID)
		require.LessOrEqual(t, time.Since(start), 2*time.Second)

		_, err = st.Txn(t.Context(), store.Txn{Then: []store.Op{store.Delete("spec")}})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		client.Fail(nil)
		_, err = job.Wait(ctx, st)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		client.Fail(func(string, string) error { return store.ErrHistory })
		_, err = job.Wait(t.Context(), st)
		require.ErrorIs(t, err, store.ErrHistory)
	})
}

// TestWaitThroughALostWatch: a watch that is silent for good is given up.
func TestWaitThroughALostWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backing := fake.New(fake.Options{})
		client := backing.Client("waiter")
		done := make(chan error, 1)
		go func() {
			_, err := job.Wait(t.Context(), store.Prefixed(client, job.Prefix("adult")))
			done <- err
		}()
		synctest.Wait()
		client.LoseWatches()
		_, err := setup(t).create(t.Context(), store.Prefixed(backing, job.Prefix("adult")))
		require.NoError(t, err)
		require.NoError(t, <-done)
	})
}
