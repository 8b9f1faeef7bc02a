package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// report writes a table. The error says which cells are too far apart.
func report(w io.Writer, t table, cells []cell) error {
	fmt.Fprintf(w, "\n%s\n\n", t.name)
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(tw, "trainers\tmode\tAUC\tlog-loss\tstaleness p50\tp99\tseconds\tCPU-s")
	for _, c := range cells {
		p50, p99 := "", ""
		if c.stale != nil {
			p50, p99 = fmt.Sprint(c.stale.P50), fmt.Sprint(c.stale.P99)
		}
		fmt.Fprintf(tw, "%d\t%s\t%.4f\t%.4f\t%s\t%s\t%.1f\t%.1f\n", c.trainers, c.mode, c.auc, c.loss, p50, p99, c.seconds, c.cpu)
	}
	_ = tw.Flush() // w is the terminal
	byAUC := func(a, b cell) int { return cmp.Compare(a.auc, b.auc) }
	least, most := slices.MinFunc(cells, byAUC), slices.MaxFunc(cells, byAUC)
	apart := most.auc - least.auc
	fmt.Fprintf(w, "\nAUC within %.4f\n", apart)
	if t.within > 0 && apart > t.within {
		return fmt.Errorf("%s: the AUC is %.4f (%s, %d trainers) to %.4f (%s, %d trainers), more than %g apart",
			t.name, least.auc, least.mode, least.trainers, most.auc, most.mode, most.trainers, t.within)
	}
	return nil
}
