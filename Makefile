# `make help` lists the targets.

GO      ?= go
BIN     := bin
LINT    := v2.15.0
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null)
# The time that an image carries: that of the commit, so that it can be made again.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
LDFLAGS := -s -w -X starfish/internal/cli.version=$(VERSION)

# Packages that share memory between goroutines: what `make race` runs.
RACE := ./etcdqueue/... ./checkpoint/... ./reader/... ./pserver/... ./trainer/... ./predict/... ./internal/...

.DEFAULT_GOAL := help
.PHONY: help build run clicks test race lint bench fuzz chaos audit compat simulate mutants proto image e2e-k8s clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## bin/starfish, bin/pserver and bin/trainer, static
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/starfish ./cmd/pserver ./cmd/trainer

run: build ## train the example examples/adult with two pservers and two trainers
	$(BIN)/starfish run -f examples/adult/adult.yaml

clicks: build ## make a click log of a million records and train on it (examples/clicks)
	test -f examples/clicks/train.libsvm || $(BIN)/starfish generate ctr --rows 1000000 -o examples/clicks/train.libsvm
	test -f examples/clicks/test.libsvm || $(BIN)/starfish generate ctr --rows 200000 --first 100000000 -o examples/clicks/test.libsvm
	$(BIN)/starfish run -f examples/clicks/clicks.yaml

test: ## all tests
	$(GO) test -timeout 20m ./...

race: ## the tests of the concurrent packages under the race detector
	$(GO) test -race -short -timeout 20m $(RACE)

lint: ## gofmt, go vet and golangci-lint with the layering rules
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo 'run gofmt on these'; exit 1; }
	$(GO) vet ./...
	@.ci/golangci-lint $(LINT) run ./...

bench: build ## a whole job next to a bare loop, then its parts next to theirs (BENCH=job, parts, saves or modes)
	@mkdir -p build
	$(if $(filter-out job,$(BENCH)),,$(GO) run ./bench/job -least 0.35)
	$(if $(filter-out parts,$(BENCH)),,$(GO) run ./bench/parts)
	$(if $(filter-out parts,$(BENCH)),,$(GO) test -run - -bench Lookup -benchtime 100x ./pserver)
	$(if $(filter-out saves,$(BENCH)),,$(GO) test -run - -bench SaveAndRestore -benchtime 5x ./pserver)
	$(if $(filter modes,$(BENCH)),$(GO) run ./bench/modes)

fuzz: ## each fuzz target for 10 s (FUZZTIME=...)
	@.ci/fuzz $(or $(FUZZTIME),10s)

chaos: ## the fault campaign: seeded plans on real processes (SEEDS=1-20 BUDGET=10m)
	@mkdir -p build
	$(GO) run ./campaign --seeds $(or $(SEEDS),0-200) --budget $(or $(BUDGET),45m) --least $(if $(SEEDS),0,20) --report build/campaign.json

audit: ## the audit job and a real model under kills, a minute each (AUDIT=5m)
	STARFISH_CAMPAIGN=$(or $(AUDIT),60s) $(GO) test -count=1 -v -timeout 60m -run 'TestAudit' ./cmd/starfish

compat: ## jobs of programs of the last release and of this tree (docs/compatibility.md)
	$(GO) test -count=1 -v -timeout 20m -run 'TestCompat' ./cmd/starfish

simulate: ## whole jobs in virtual time under seeded faults (SEEDS=17 or 0-9999)
	$(GO) run ./simulate -seeds $(or $(SEEDS),0-9999)

mutants: ## break each invariant by one line and see a test, and the simulation, fail (ONLY=regexp BY=tests|simulation)
	@mkdir -p build
	$(GO) run ./mutants/run -only "$(ONLY)" -by $(or $(BY),all) -table build/mutants.md

proto: ## generate the protobuf code again (needs protoc and its Go plugins)
	protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative pserver/pb/*.proto

IMAGE = SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) $(GO) run ./deploy/image -cmd 'starfish --help' -version '$(VERSION)' -revision '$(COMMIT)' \
	$(if $(CERTIFICATES),-certificates $(CERTIFICATES)) $(if $(SOURCE),-label org.opencontainers.image.source=$(SOURCE))

image: build ## container images as archives in build/image, without an engine (SOURCE=url CERTIFICATES=ca.pem)
	@mkdir -p build/image
	@$(IMAGE) -o build/image/starfish.tar -sbom build/image/starfish.spdx.json -ref localhost/starfish:$(VERSION) $(BIN)/pserver $(BIN)/trainer $(BIN)/starfish
	@$(IMAGE) -o build/image/starfish-dev.tar -ref localhost/starfish:dev $(BIN)/pserver $(BIN)/trainer $(BIN)/starfish examples/adult=/examples/adult

e2e-k8s: image ## the suite on a real Kubernetes that it starts (root; half an hour, the first time a quarter more; TEST=Test3)
	@deploy/e2e/run '$(TEST)'

clean: ## remove what was built
	rm -rf $(BIN) build
