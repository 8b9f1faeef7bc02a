// Package wire is the layout of the messages between trainers and pservers:
// flat, little-endian, versioned, without reflection and without copies.
package wire
