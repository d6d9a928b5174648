# Homenode. `make help` lists the targets. ONCE=1, TRAEFIK_BIN=… and the like are
# read from the environment or from the command line: `make demo ONCE=1`.
export ONCE TRAEFIK_BIN HOMENODE_CACHE

UNIT := $$(go list ./... | grep -v /e2e$$)
FUZZTIME ?= 30s

.PHONY: help build demo test unit e2e lint generate bench traefik fuzz clean

help: ## list the targets
	@grep -hE '^[a-z0-9]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

build: ## build bin/homenode
	go build -o bin/homenode ./bindsvc

demo: build ## a whole gateway on this machine: three nodes, a real Traefik, users who stay (ONCE=1: end after the story)
	bin/homenode demo

test: unit e2e ## everything, from unit tests to whole processes

unit: ## go vet, then the tests of every package; real PostgreSQL and Redis where a package talks to one
	go vet ./...
	go test -race -timeout 15m $(UNIT)
	go test -timeout 15m ./plugin # interpreted too, as Traefik runs it

e2e: traefik ## scenarios with a real Traefik, PostgreSQL and Redis
	go test -race -timeout 45m -v ./e2e

lint: generate ## golangci-lint and govulncheck, at the versions of tools/go.mod; generated code is that of the document
	git diff --exit-code -- bindsvc/api bindsvc/internal/httpapi/admin.gen.go
	go tool -modfile=tools/go.mod golangci-lint run
	go tool -modfile=tools/go.mod govulncheck ./...

generate: ## what is made from bindsvc/api/openapi.yaml: types, client, routes
	go generate ./bindsvc/api

bench: ## the comparisons of bench/ (about 12 minutes of full load)
	go run ./bench/imports
	go run ./bench/guards

traefik: ## build the real Traefik into .cache (the first time about 6 minutes)
	@traefik/host/build.sh

fuzz: ## every fuzz target for FUZZTIME (30s)
	@go list ./... | while read -r package; do \
		go test -list '^Fuzz' $$package | grep ^Fuzz | while read -r target; do \
			echo "== $$package $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$package || exit 1; \
		done || exit 1; \
	done

clean: ## delete what was built, Traefik included
	rm -rf bin .cache
