package cli

import (
	"context"
	"errors"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"starfish/internal/admin"
)

// errNotBegun is why a daemon is not ready before it has reached etcd.
var errNotBegun = errors.New("etcd has not been reached yet")

// face is what a daemon says of itself at its admin port.
type face struct {
	ready  func() error
	status func() any
}

// faces is the place of the present face.
type faces struct{ shown atomic.Pointer[face] }

func (f *faces) ready() error {
	if at := f.shown.Load(); at != nil {
		return at.ready()
	}
	return errNotBegun
}

func (f *faces) status() any {
	if at := f.shown.Load(); at != nil {
		return at.status()
	}
	return map[string]string{"waiting": errNotBegun.Error()}
}

// Show sets what the admin port says: whether the daemon is ready (nil) or why it
// is not, and its status. Until then it says that etcd has not been reached.
func (d *Daemon) Show(ready func() error, status func() any) {
	d.faces.shown.Store(&face{ready, status})
}

// over makes a daemon ready that has nothing more to do.
func (f *faces) over() {
	if at := f.shown.Load(); at != nil {
		f.shown.Store(&face{func() error { return nil }, at.status})
	}
}

// withAdmin runs a daemon with its admin port beside it, so that a process that
// waits for etcd can be told from a dead one; the port closes after run has
// returned. An address that cannot be listened at is an error of usage.
func (d *Daemon) withAdmin(ctx context.Context, run func() error) error {
	d.faces, d.Registry = &faces{}, admin.NewRegistry()
	if d.Admin == "" {
		return run()
	}
	port, err := admin.Listen(admin.Config{
		Address: d.Admin, Metrics: d.Registry, Ready: d.faces.ready, Status: d.faces.status, Log: d.Log,
	})
	if err != nil {
		return Usage("--admin-address: %w", err)
	}
	d.Log.WithField("address", port.Address()).Info("admin port open")
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	var g errgroup.Group
	g.Go(func() error { return port.Run(serving) })
	err = run()
	stop()
	if e := g.Wait(); e != nil {
		d.Log.WithError(e).Warn("the admin port failed")
	}
	return err
}
