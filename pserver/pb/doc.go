// Package pb is the protobuf side of the pservers' service, generated from
// pserver.proto. The hot path (Exchange) carries frames whose bodies are the
// flat layout of internal/wire; docs/wire.md describes both.
package pb
