# Targets for developers and CI. `make` alone lists them.

SHELL := /bin/bash
GO ?= go
# sudo's PATH often lacks the directory of Go's installation instructions.
export PATH := $(PATH):/usr/local/go/bin
export GOFLAGS := -buildvcs=false -trimpath
# The race detector needs cgo; all else is compiled once, without it.
export CGO_ENABLED := 0

# The version of every program (pkg/version). Outside of git, set the variables: make build VERSION=v1.0.0 ……
git = git -c safe.directory='*'
VERSION ?= $(or $(shell $(git) describe --always --tags --dirty 2>/dev/null),unknown)
REVISION ?= $(or $(shell $(git) rev-parse HEAD 2>/dev/null),unknown)
CREATED ?= $(or $(if $(SOURCE_DATE_EPOCH),$(shell date -u -d @$(SOURCE_DATE_EPOCH) +%Y-%m-%dT%H:%M:%SZ)),$(shell TZ=UTC $(git) log -1 --format=%cd --date=format-local:%Y-%m-%dT%H:%M:%SZ 2>/dev/null),unknown)
LDFLAGS = -s -w -X 'github.com/ovsdn/ovsdn/pkg/version.stamp=$(VERSION) $(REVISION) $(CREATED)'

# The CNI plugin for host ports, of the version in go.mod.
PORTMAP = github.com/containernetworking/plugins/plugins/meta/portmap

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: bootstrap
bootstrap: ## install missing packages on this machine (Debian or Ubuntu, as root)
	@scripts/bootstrap.sh

.PHONY: build
build: ## build the programs into bin/
	$(GO) build -trimpath -ldflags "$(LDFLAGS)" -o bin/ ./cmd/... $(PORTMAP)

.PHONY: images
images: build ## write the container images to bin/images as OCI archives, with SBOM, provenance and digests, without a container engine (Debian; as root for apt)
	$(GO) run -ldflags "$(LDFLAGS)" ./images/build archives

.PHONY: demo
demo: bootstrap build ## start a cluster of two nodes on this machine, with two pods and a service
	@scripts/demo.sh

.PHONY: reload
reload: build ## roll the programs of this work tree out in the running lab, as new images
	@bin/ovsdn-lab $(if $(filter command line environment,$(origin LAB)),--name $(LAB)) reload

.PHONY: down
down: ## remove the demo's cluster
	@if [ -x bin/ovsdn-lab ]; then bin/ovsdn-lab down; else echo "bin/ovsdn-lab is not built: nothing to remove"; fi

# Tests that compare the compiled policies with pkg/sdn/oracle.
ORACLE = TestSwitchAgrees|Agrees?WithTheOracle

.PHONY: test
test: bootstrap ## run the short tier of all tests (root; 8 minutes on two processors, 17 the first time); STEPS="unit lab" runs some
	scripts/test.sh short $(STEPS)

.PHONY: test-all
test-all: bootstrap ## run all tests, with every bound in time and every lost packet asserted (root; an hour); STEPS=lab runs some
	scripts/test.sh complete $(STEPS)

.PHONY: mutation
mutation: bootstrap ## put ten faults into copies of the product: each must turn a test of the short tier red (root)
	$(GO) run ./test/mutation $(ARGS)

.PHONY: oracle
oracle: ## compare network policies and services of 2,000 random clusters and all cases of cyclonus on real switches (root; less than an hour on two processors)
	$(GO) test -count=1 -timeout 6h -v -run '$(ORACLE)' ./pkg/sdn/policy ./pkg/sdn/node/networkpolicy -seeds=2000

.PHONY: soak
soak: build ## 10,000 pods while the agent is killed repeatedly, 2,000 on full nodes, 200 restarts of an agent under traffic, 200 changes of VNIDs, every fault with agents running and stopped, 1,000 new pods under policies, attacks of full size (root; an hour and a half)
	OVSDN_TEST_PAIRS=10000 CGO_ENABLED=1 $(GO) test -race -count=1 -timeout 3h -v -run TestKilledAgent ./test/cni
	OVSDN_TEST_WAVES=38 OVSDN_TEST_RESTARTS=100 $(GO) test -count=1 -timeout 2h -v -run 'TestFullNodes|TestAgentRestartIsHitless' ./test/e2e
	OVSDN_E2E_CHANGES=200 OVSDN_E2E_ALL_FAULTS=1 $(GO) test -count=1 -timeout 1h -v -run TestTenants ./test/e2e
	OVSDN_TEST_FIRSTS=1000 OVSDN_E2E_ALL_CASES=1 $(GO) test -count=1 -timeout 1h -v -run TestPolicies ./test/e2e
	OVSDN_E2E_WHOLE_ATTACKS=1 $(GO) test -count=1 -timeout 3h -v ./test/attacks
	OVSDN_E2E_WHOLE_ATTACKS=1 $(GO) test -count=1 -timeout 1h -v -run '^TestCaches_large' ./pkg/sdn/node/caches ./pkg/sdn/master/...

.PHONY: test-rules
test-rules: ## test the alert rules of deploy/monitoring with Prometheus' packages (which it downloads)
	cd test/rules && $(GO) test -count=1 ./...

.PHONY: test-browser
test-browser: ## test the page of `kubectl ovsdn dashboard` in a headless Chromium, which it installs (root for apt; downloads Go packages)
	@scripts/bootstrap.sh browser
	cd test/browser && $(GO) test -count=1 -timeout 30m ./...

.PHONY: test-kernel
test-kernel: ## run tests on the kernel datapath, in a virtual machine (root; Debian)
	@scripts/bootstrap.sh kernel
	@scripts/test-kernel.sh

# A lab that remains, for `make e2e`; the lab is brought up with these options if there is none.
LAB ?= dev
LAB_OPTIONS ?= --mode=subnet --service-proxy=external
# The tests that LAB runs, and the packages where they are.
RUN ?= .
E2E ?= ./test/e2e

.PHONY: e2e
e2e: build ## run one end-to-end test (RUN=) in a lab that remains, with the programs of this work tree (root); make e2e LAB=dev RUN=TestServices
	@if bin/ovsdn-lab --name $(LAB) status >/dev/null 2>&1; then bin/ovsdn-lab --name $(LAB) reload; else bin/ovsdn-lab --name $(LAB) up $(LAB_OPTIONS); fi
	OVSDN_E2E_LAB=$(LAB) OVSDN_E2E_TENANTS_LAB=$(LAB) OVSDN_E2E_POLICIES_LAB=$(LAB) OVSDN_E2E_ATTACKS_LAB=$(LAB) OVSDN_E2E_EGRESS_LAB=$(LAB) OVSDN_E2E_DIAGNOSES_LAB=$(LAB) \
		$(GO) test -vet=off -p 1 -count=1 -timeout 0 -v -run '$(RUN)' $(E2E)

.PHONY: verify-docs
verify-docs: build ## run the commands of docs/install.md, upgrade.md and uninstall.md in a lab (root)
	@scripts/verify-docs.sh

.PHONY: lint
lint: ## run golangci-lint with go vet and the project's rules, logcheck (log calls have a context, a message and pairs of keys and values), and count the words to avoid
	$(GO) tool -modfile=scripts/tools/go.mod golangci-lint run ./...
	$(GO) tool -modfile=scripts/tools/go.mod logcheck -test=false -check-contextual -config scripts/tools/logcheck.conf ./...
	$(GO) test ./test/language

.PHONY: vulncheck
vulncheck: ## list known vulnerabilities in functions that the programs call (needs https://vuln.go.dev; VULNDB=file:///… for a copy)
	$(GO) tool -modfile=scripts/tools/go.mod govulncheck -db $(VULNDB) ./...

VULNDB ?= https://vuln.go.dev

.PHONY: bench
bench: build ## run benchmarks, as ratios to a floor or a peer in the same run (root); `make bench ARGS=add` runs one
	$(GO) run ./test/bench $(ARGS)

.PHONY: bench-against
bench-against: build ## benchmark this checkout and another commit alternately (root); `make bench-against COMMIT=HEAD~1 ARGS="--samples 200 add policy datapath"`
	GO="$(GO)" scripts/bench-against.sh $(or $(COMMIT),HEAD~1) $(ARGS)
