package cli

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"starfish/internal/admin"
)

// ServeAdmin runs a daemon with its admin port beside it; the port closes after
// run has returned. An address that cannot be listened at is an error of usage.
func (d *Daemon) ServeAdmin(ctx context.Context, metrics prometheus.Gatherer, ready func() error, status func() any,
	run func(context.Context) error) error {
	if d.Admin == "" {
		return run(ctx)
	}
	port, err := admin.Listen(admin.Config{Address: d.Admin, Metrics: metrics, Ready: ready, Status: status, Log: d.Log})
	if err != nil {
		return Usage("--admin-address: %w", err)
	}
	d.Log.WithField("address", port.Address()).Info("admin port open")
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	var g errgroup.Group
	g.Go(func() error { return port.Run(serving) })
	err = run(ctx)
	stop()
	if e := g.Wait(); e != nil {
		d.Log.WithError(e).Warn("the admin port failed")
	}
	return err
}
