// Package pb is the protobuf side of the pservers' service, generated from
// pserver.proto. The hot path (Exchange) carries frames whose bodies are the
// flat layout of internal/wire; docs/wire.md describes both.
package pb

//go:generate protoc -I ../.. --go_out=../.. --go_opt=module=starfish --go-grpc_out=../.. --go-grpc_opt=module=starfish pserver/pb/pserver.proto
