// Package wire is the layout of the messages between trainers and pservers:
// flat, little-endian, versioned, without reflection and, apart from the one
// copy into a message, without copies. docs/wire.md has the byte layouts.
//
// A message is written with a RequestWriter or ResponseWriter into a Buffer,
// which a carrier (package transport) sends and recycles. It is read with
// Decode, whose slices are views into the received body: they are valid only
// as long as the body is, and must not be changed.
//
// Decode believes nothing: it checks every count against the bytes that are
// there before it uses it, so what it allocates is bounded by the size of the
// body, and garbage yields ErrFormat. It does not know the job's parameters;
// whether parameter, block and row sizes fit is for the shard to check.
//
// Arrays begin at multiples of eight bytes from the body's start, and bodies
// are aligned in memory. Only little-endian machines are supported.
package wire
