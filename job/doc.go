// Package job holds what all processes of a job must agree on: its spec, the
// resolved list of its parameters, and where each part of a parameter lives.
//
// A spec is strict YAML (ParseSpec): an unknown field, an impossible value or
// a field that this version does not implement is an error that names line
// and field, and all errors of a spec are reported at once. The defaults stand
// in one place, in the function defaults. Relative paths are joined with the directory of the
// spec's file and stored absolute, so every process of a job, wherever it was
// started, opens the same paths; machines must see the data under the same
// names.
//
// Create stores the spec and everything that belongs to a new job in one etcd
// transaction "if absent": a job exists completely or not at all, whoever is
// killed in between and however many processes try at once. Who comes later
// with another spec gets ErrSpecDiffers with the first difference. The create
// revision of the spec identifies the job in the guards of other transactions:
// a job that was deleted and submitted again is another job.
//
// The placement of keys and blocks on shards (Mix, ShardOf, BlockShard) and
// the exit codes of all commands (Code) are also here because they are part of
// the contract with users.
//
// Values of this package are not changed after they were made, and may be
// shared between goroutines.
package job
