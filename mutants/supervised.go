package mutants

// supervised: what those who start the processes again could break.
func supervised() []Mutant {
	return []Mutant{
		{
			Name: "told-to-go-is-done", Invariant: 1,
			Breaks: "a supervisor takes a pod that was told to go for one whose work is done, and replaces it by none",
			File:   "internal/cli/daemon.go", Old: "case ctx.Err() != nil && d.SignalCode != 0:", New: "case false:",
			Package: "./internal/cli", Run: "TestSignalCode|TestDaemonCommand",
		},
		{
			Name: "waiting-for-etcd-is-dead", Invariant: 1,
			Breaks: "a process that waits for etcd at its start answers no probe, and is killed",
			File:   "internal/cli/daemon.go", Old: "return d.withAdmin(ctx, func() error {", New: "if _, _, err := d.Connect(ctx, d.Log); err != nil {\n\t\t\t\treturn orderly(ctx, err)\n\t\t\t}\n\t\t\treturn d.withAdmin(ctx, func() error {",
			Package: "./internal/cli", Run: "TestAdminPort",
		},
	}
}
