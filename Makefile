# Berth. `make` alone prints what there is.
.DEFAULT_GOAL := help
.PHONY: help build check test demo bench clean soak model sim stories packages vuln

help: ## this text
	@echo "make ..."
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' Makefile | awk -F'|' '{ printf "  %-9s%s\n", $$1, $$2 }'

build: ## one static binary, bin/berth (NATIVE=1: with libvirt's C library, by cgo; installs what that needs, as root)
ifdef NATIVE
	@sh packaging/native-needs
	CGO_ENABLED=1 go build -trimpath -tags native -o bin/berth ./cmd/berth
else
	CGO_ENABLED=0 go build -trimpath -o bin/berth ./cmd/berth
endif

check: ## before a commit: format, vet, lint, unit tests with the race detector
	@test/run check

test: ## every test, on real libvirt, QEMU and Placement; installs what is missing (root)
	@test/run

demo: ## two hosts, a guest, a live migration with claims, a cut link (V=1 shows what commands print, KEEP=1 leaves it up, FORCE=1 runs beside a libvirt daemon)
	@go run ./test/demo $(if $(V),--verbose) $(if $(KEEP),--keep) $(if $(FORCE),--force)

soak: ## real migrations with a fault or two each, on real hosts (ROUNDS=200, SEED=n, BUDGET=45 minutes, ONLY=faults and STORY=stories by expression)
	@go run ./test/soak/cmd/soak -rounds $(or $(ROUNDS),200) $(if $(SEED),-seed $(SEED)) -budget $(or $(BUDGET),45)m $(if $(ONLY),-only '$(ONLY)') $(if $(STORY),-story '$(STORY)') $(if $(FORCE),-force)

bench: ## benchmarks; the embedded Placement beside OpenStack's as a table (BENCH=Placement alone)
	@go test -run '^$$' -bench '$(or $(BENCH),.)' -benchmem ./...

model: ## the hand-over as a state machine, searched to the end, and its mutants (MUTANT=list, MUTANT=name shows the run in words); installs spin (root)
	@go run ./test/model/cmd/model $(or $(MUTANT),all)

sim: ## a whole fleet in one process, broken by chance (RUNS=100000, SEED=1, VERBOSE=1, MUTANT=list, all or a name, EVERY=1 for each point of each story)
	@go run ./test/sim/cmd/sim -runs $(or $(RUNS),$(if $(MUTANT),2000,100000)) -seed $(or $(SEED),1) $(if $(VERBOSE),-verbose) $(if $(EVERY),-enumerate) $(if $(MUTANT),-mutant $(MUTANT))

stories: ## every step of every story of package migration fails before, fails after, is killed: what is left, a JSON line each (ROW='resize, claim, kill' shows one run)
	@go run ./test/stories/cmd/stories $(if $(ROW),-row '$(ROW)')

packages: ## the deb and the rpm, the same bytes for the same commit, in build/packages (VERSION=1.2.3, ARCH=amd64 or arm64; NATIVE=1 as for build)
	@$(if $(NATIVE),sh packaging/native-needs &&) go run ./packaging/build -out build/packages $(if $(NATIVE),-native) $(if $(VERSION),-version $(VERSION)) $(if $(ARCH),-arch $(ARCH))

vuln: ## known vulnerabilities that Berth can reach, by a copy of Go's database (DB=folder)
	@sh packaging/vulnerabilities $(DB)

clean: ## what was built
	rm -rf bin build
