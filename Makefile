# Latchkey's build.
#
#   make              the programs, the library and nginx's module, in build/
#   make tests        the test programs; make faults: with fault points
#   make check        every test; PYTEST_ARGS=... for pytest, JOBS=... at a time
#   make check-unit   only those in C
#   make crash        kills the daemon N=10000 times under load
#   make linear       random commands and faults on each store for SECONDS=60;
#                     SEED=... repeats a run
#   make planted      plants bugs and checks that each is found
#   make model        the model of the protocol, with larger bounds
#   make fuzz         each fuzzer for SECONDS=60
#   make bench        the comparisons; BENCH_ARGS=... as for ./run bench
#   make fmt          formats the code; make fmt-check only checks
#   make lint         fmt-check and clang-tidy; nginx/ with more warnings
#   make nginx-asan   an nginx with sanitizers and the module for it, in
#                     build/address-undefined
#   make install      to PREFIX=/usr/local, LIBDIR=$(PREFIX)/lib, below DESTDIR
#   make clean
#
#   SANITIZE=address,undefined   a sanitizer build, in build/address-undefined;
#                                it has fault points as well
#   SANITIZE=thread              the same with ThreadSanitizer, in build/thread
#   FAULTS=1                     with fault points for tests, in build/faults
#   GATEWAY=                     without nginx's module
#   V=1                          shows the commands

CC       ?= cc
CLANG    ?= clang
PYTHON   ?= /usr/bin/python3
PREFIX   ?= /usr/local
LIBDIR   ?= $(PREFIX)/lib
OPT      ?= $(if $(SANITIZE),-O1,-O2) -g
SANITIZE ?=
# Sanitizer builds are for tests alone: with fault points, one of each kind is
# enough.
FAULTS   ?= $(if $(SANITIZE),1)
V        ?=
# A module with sanitizers needs an nginx that has them: see nginx-asan. There
# is none for SANITIZE=thread: nginx has no threads. Fault points are the
# daemon's.
GATEWAY  ?= $(if $(SANITIZE)$(FAULTS),,1)

comma := ,
flavour := $(or $(subst $(comma),-,$(SANITIZE)),$(if $(FAULTS),faults))
BUILD ?= build$(if $(flavour),/$(flavour))

Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-5s %s\n' '$(1)' '$(2)')

# Hardening, for the module too. Sanitizers have checks of their own, which do not
# go together with these.
HARDEN_CFLAGS  ?= $(if $(SANITIZE),,-fstack-protector-strong -fstack-clash-protection \
  -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 -Wformat -Werror=format-security)
HARDEN_LDFLAGS ?= -Wl,-z,relro,-z,now,-z,noexecstack

PKGS := libuv sqlite3 libpq libcrypto inih libcurl
ifneq ($(filter-out clean fmt fmt-check help,$(or $(MAKECMDGOALS),all)),)
ifneq ($(shell pkg-config --exists $(PKGS) && echo yes),yes)
$(error pkg-config does not find $(foreach pkg,$(PKGS),$(shell pkg-config --exists $(pkg) || echo $(pkg))). \
  Debian 12 has what the build needs; as root: $(shell ./run packages))
endif
endif
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)

CFLAGS_ALL := -std=gnu11 -Wall -Wextra -Werror -Wshadow -Wpointer-arith \
  -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wno-unused-parameter \
  -fPIC -D_GNU_SOURCE -Iinclude -I. -I$(BUILD)/gen -Wa,-I$(BUILD)/gen $(OPT) $(HARDEN_CFLAGS) $(PKG_CFLAGS) \
  $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer) \
  $(if $(FAULTS),-DLK_FAULTS) $(CFLAGS)
LDFLAGS_ALL := $(HARDEN_LDFLAGS) $(if $(SANITIZE),-fsanitize=$(SANITIZE)) $(LDFLAGS)

LIB_LIBS    := -lcrypto
STORE_LIBS  := -lsqlite3 -lpq -lcrypto -lpthread
DAEMON_LIBS := -luv -linih -lcurl $(STORE_LIBS)
objs = $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard $(1)))

LIB_OBJS    := $(call objs,lib/*.c)
STORE_OBJS  := $(call objs,store/*.c)
CONFIG_OBJS := $(call objs,config/*.c)
DAEMON_OBJS := $(call objs,daemon/*.c)
COURIER_OBJS := $(call objs,courier/*.c)
CLI_OBJS    := $(call objs,cli/*.c)
# Everything of the daemon but its main, and what the tool compares ledgers with,
# for tests that link it.
DAEMON_PARTS := $(filter-out $(BUILD)/obj/daemon/main.o,$(DAEMON_OBJS)) $(COURIER_OBJS) \
  $(CONFIG_OBJS) $(call objs,cli/compare.c cli/csv.c)

# What has one thread only proves nothing under SANITIZE=thread: most tests in
# C, and those of the command line and of moving between stores.
THREADS       := $(filter thread,$(SANITIZE))
UNIT_TESTS    := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/courier/test_*.c \
  $(if $(THREADS),tests/unit/test_batcher.c,tests/unit/test_*.c tests/store/test_*.c)))
ONE_THREAD    := test_cli*.py test_mistakes.py test_profiles.py test_moving*.py test_stores.py test_reconcile.py test_model.py
TEST_TOOLS    := $(patsubst tests/%.c,$(BUILD)/tests/%,$(filter-out tests/unit/% tests/fuzz/% tests/model/% tests/store/test_% tests/courier/test_% tests/linear/shim.c,$(wildcard tests/*/*.c))) $(BUILD)/tests/linear/shim.so
MODEL         := $(BUILD)/tests/model/model
BENCH_TOOLS   := $(patsubst %.c,$(BUILD)/%,$(wildcard bench/*.c))
FUZZERS       := $(patsubst tests/fuzz/%.c,build/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))

SHELL := /bin/bash
.PHONY: all check check-unit faults fuzz bench crash fmt fmt-check lint lint-nginx \
  linear planted planted-daemon rules \
  install clean help tests model nginx-asan
.SECONDARY:

MODULE := $(if $(GATEWAY),$(BUILD)/ngx_http_latchkey_module.so)

all: $(BUILD)/latchkeyd $(BUILD)/latchkey $(BUILD)/liblatchkey.a $(BUILD)/liblatchkey.so $(BUILD)/latchkey.pc $(BUILD)/latchkeyd.service $(MODULE) $(BUILD)/payments $(BUILD)/provider $(BUILD)/lossy

help:
	@sed -n '/^#/!q;s/^# \{0,1\}//p' Makefile

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CFLAGS_ALL) -MMD -MP -c -o $@ $<

# ---- the rules in SQL and Lua ----------------------------------------------------

# What store/embed.h takes into an object: the templates in store/sql and store/lua
# with the rules of lib/machine.c and lib/job_machine.c filled in. And sql_names.h,
# the names that SQL in the store's C has for states.
GEN       := $(BUILD)/gen
RULES_GEN := $(GEN)/rules_gen
EMBEDDED  := $(patsubst store/%,$(GEN)/%,$(wildcard store/sql/*.sql store/lua/*.lua))
SQL_NAMES := $(GEN)/sql_names.h
$(STORE_OBJS): $(EMBEDDED) $(SQL_NAMES)
rules: $(EMBEDDED) $(SQL_NAMES)

$(RULES_GEN): $(BUILD)/obj/tools/rules_gen.o $(BUILD)/liblatchkey.a
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LIB_LIBS)

$(GEN)/sql/%.sql: store/sql/%.sql $(RULES_GEN)
	@mkdir -p $(@D)
	$(call say,GEN,$@)
	$(Q)$(RULES_GEN) sql <$< >$@.part && mv $@.part $@

$(SQL_NAMES): $(RULES_GEN)
	$(call say,GEN,$@)
	$(Q)$(RULES_GEN) header >$@.part && mv $@.part $@

$(GEN)/lua/%.lua: store/lua/%.lua $(RULES_GEN)
	@mkdir -p $(@D)
	$(call say,GEN,$@)
	$(Q)$(RULES_GEN) lua <$< >$@.part && mv $@.part $@

# ---- the programs ----------------------------------------------------------------

$(BUILD)/liblatchkey.a: $(LIB_OBJS)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/liblatchkey.so: $(LIB_OBJS) lib/exports.map
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -shared -Wl,-soname,liblatchkey.so.0 \
	  -Wl,--version-script=lib/exports.map -o $@ $(LIB_OBJS) $(LIB_LIBS)

$(BUILD)/latchkeyd: $(DAEMON_OBJS) $(COURIER_OBJS) $(CONFIG_OBJS) $(STORE_OBJS) $(BUILD)/liblatchkey.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(DAEMON_LIBS)

$(BUILD)/latchkey: $(CLI_OBJS) $(CONFIG_OBJS) $(STORE_OBJS) $(BUILD)/liblatchkey.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LIB_LIBS) $(STORE_LIBS) -linih

# Written at each run that needs it: PREFIX may be another one.
$(BUILD)/latchkey.pc $(BUILD)/latchkeyd.service: $(BUILD)/%: packaging/%.in FORCE
	@mkdir -p $(@D)
	$(Q)sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' \
	  -e "s|@VERSION@|$$(sed -n 's/^.define LATCHKEY_VERSION  *"\(.*\)"/\1/p' include/latchkey.h)|" $< >$@

.PHONY: FORCE

# ---- nginx's module ------------------------------------------------------------

# The headers and the configuration of the nginx that is installed, as the
# package nginx-dev brings them. nginx's own build configures once and then
# only makes; it does not look at the library, so the module goes first.
NGINX_SRC     ?= /usr/share/nginx/src
NGINX_SOURCES := $(wildcard nginx/*.c nginx/*.h)
NGINX_OBJS    := $(abspath $(BUILD))/ngx

$(NGINX_OBJS)/Makefile: nginx/config | $(BUILD)/liblatchkey.a
	@test -f $(NGINX_SRC)/conf_flags || { echo "nginx's headers are missing:" \
	  "install nginx and nginx-dev, or build without the gateway: make GATEWAY=" >&2; exit 1; }
	$(call say,CONF,nginx)
	@rm -rf $(@D) && mkdir -p $(@D)
	$(Q)cd $(NGINX_SRC) && . ./conf_flags && \
	  LATCHKEY_INC=$(abspath include) LATCHKEY_LIB=$(abspath $(BUILD)) \
	  ./configure "$${NGX_CONF_FLAGS[@]}" --with-cc='$(CC)' \
	  --with-cc-opt='$(OPT) -fPIC $(HARDEN_CFLAGS) $(CFLAGS)' \
	  --with-ld-opt='$(HARDEN_LDFLAGS) -Wl,--exclude-libs,ALL $(LDFLAGS)' \
	  --add-dynamic-module=$(abspath nginx) --builddir=$(@D) >$(@D)/configure.log 2>&1 || \
	  { tail -20 $(@D)/configure.log; rm -f $@; exit 1; }

$(BUILD)/ngx_http_latchkey_module.so: $(NGINX_OBJS)/Makefile $(NGINX_SOURCES) include/latchkey.h $(BUILD)/liblatchkey.a
	$(call say,NGX,$@)
	@rm -f $(NGINX_OBJS)/$(@F)
	$(Q)$(MAKE) --no-print-directory $(if $(V),,-s) -C $(NGINX_SRC) -f $(NGINX_OBJS)/Makefile modules
	$(Q)rm -f $@ && cp $(NGINX_OBJS)/$(@F) $@ # a running nginx has the old one mapped

ASAN_BUILD := $(if $(filter address%,$(SANITIZE)),$(BUILD),build/address-undefined)

nginx-asan:
	$(Q)$(MAKE) --no-print-directory SANITIZE=address,undefined BUILD=$(ASAN_BUILD) $(ASAN_BUILD)/liblatchkey.a
	$(Q)tests/gateway/build_nginx.sh $(ASAN_BUILD)

# ---- the example: a payments API, its provider, and a network that loses ------
# answers

EXAMPLE       := $(BUILD)/obj/examples/payments
SHARED_OBJS   := $(addprefix $(EXAMPLE)/,server.o http.o ledger.o charge.o address.o text.o)
PAYMENTS_OBJS := $(addprefix $(EXAMPLE)/,main.o api.o) $(SHARED_OBJS)
PROVIDER_OBJS := $(call objs,examples/payments/provider*.c) $(SHARED_OBJS)
LOSSY_OBJS    := $(addprefix $(EXAMPLE)/,lossy.o address.o text.o)

$(BUILD)/payments: $(PAYMENTS_OBJS)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^

$(BUILD)/provider: $(PROVIDER_OBJS)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^

$(BUILD)/lossy: $(LOSSY_OBJS)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ -lpthread

# ---- tests -------------------------------------------------------------------

tests: $(UNIT_TESTS) $(TEST_TOOLS) $(MODEL)

$(MODEL): $(call objs,tests/model/*.c) $(BUILD)/liblatchkey.a
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LIB_LIBS)

$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(DAEMON_PARTS) $(STORE_OBJS) $(BUILD)/liblatchkey.a
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LIB_LIBS) $(DAEMON_LIBS) -lcmocka

# A disk that fails, for LD_PRELOAD.
$(BUILD)/tests/linear/shim.so: $(BUILD)/obj/tests/linear/shim.o
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) -shared -o $@ $^ -ldl

# How many tests run at a time: most of them wait more than they work.
JOBS ?= $(shell echo $$((2 * $$(nproc))))

run_tests = printf '%s\n' $(1) | xargs -P $(JOBS) -n 1 tests/run_unit.sh

check-unit: $(UNIT_TESTS)
	$(Q)$(call run_tests,$(UNIT_TESTS))

# The whole run: unit and store tests, then pytest against the real programs.
# Tests that need fault points use a second build beside this one, with nothing
# in it that would be the same.
FAULTS_BUILD := $(if $(SANITIZE),$(BUILD),build/faults)
FAULT_TESTS  := $(patsubst tests/%.c,$(BUILD)/tests/%,$(shell grep -l LK_FAULTS tests/*/test_*.c))

.PHONY: fault-programs check-faults
fault-programs: $(BUILD)/latchkeyd $(BUILD)/latchkey $(FAULT_TESTS)

check-faults: $(FAULT_TESTS)
	$(Q)$(call run_tests,$(FAULT_TESTS))

faults:
	$(Q)$(if $(SANITIZE),:,$(MAKE) --no-print-directory FAULTS=1 BUILD=$(FAULTS_BUILD) fault-programs)

# With sanitizers the gateway's tests use an nginx that has them too; without a
# gateway there are none.
ASAN := $(filter address%,$(SANITIZE))

# What does not depend on how our programs were built is left out under
# sanitizers.
SUITES := $(if $(THREADS),$(patsubst %,'--ignore-glob=*/%',$(ONE_THREAD))) \
  tests/crash tests/history tests/linear tests/model $(if $(SANITIZE),,tests/sql) tests/courier tests/redis tests/store \
  $(if $(ASAN)$(GATEWAY),tests/gateway tests/hosts) $(if $(SANITIZE),,tests/services tests/docs) tests/daemon
PYTEST := LATCHKEY_BUILD=$(BUILD) LATCHKEY_FAULTS_BUILD=$(FAULTS_BUILD) \
  $(if $(ASAN),LATCHKEY_NGINX=$(abspath $(BUILD))/nginx) $(PYTHON) -m pytest -q

check: all tests faults $(if $(ASAN),nginx-asan)
	$(Q)$(MAKE) --no-print-directory check-unit
	$(Q)$(if $(SANITIZE),:,$(MAKE) --no-print-directory FAULTS=1 BUILD=$(FAULTS_BUILD) check-faults)
	$(Q)$(PYTEST) -n $(JOBS) $(PYTEST_ARGS) $(SUITES)

# One changed source, in the folder PLANT, instead of PLANTED: see
# tests/support/plants.py.
planted-daemon: $(DAEMON_OBJS) $(COURIER_OBJS) $(CONFIG_OBJS) $(STORE_OBJS) $(LIB_OBJS)
	$(Q)$(CC) $(CFLAGS_ALL) -c -o $(PLANT)/planted.o $(PLANT)/$(PLANTED)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $(PLANT)/latchkeyd $(PLANT)/planted.o \
	  $(filter-out $(BUILD)/obj/$(PLANTED:.c=.o),$^) $(DAEMON_LIBS)

# Random commands, kills and faults for SECONDS on each store; every reply is
# proven possible. SEED repeats a run, STORE=sqlite takes one store alone.
SEED  ?=
STORE ?= sqlite or postgres or redis
linear: all tests
	$(Q)LATCHKEY_LINEAR_SECONDS=$(SECONDS) LATCHKEY_SEED=$(SEED) $(PYTEST) -s \
	  -k '$(STORE)' tests/linear/test_linear.py

# Plants bugs, and sees that each is found.
planted: all tests
	$(Q)LATCHKEY_PLANTED=all $(PYTEST) tests/linear/test_planted.py

# Kills the daemon N times under load and checks what it had acknowledged.
N ?= 10000
crash: all tests faults
	$(Q)LATCHKEY_KILLS=$(N) $(PYTEST) -s tests/crash

# Some minutes, and as much memory as it takes: a few gigabytes.
model: $(MODEL)
	$(Q)$(MODEL) --deep

# ---- fuzzing -----------------------------------------------------------------

SECONDS ?= 60
FUZZ_CFLAGS := -std=gnu11 -g -O1 -D_GNU_SOURCE -Iinclude -I. -fsanitize=fuzzer-no-link,address,undefined \
  -fno-sanitize-recover=undefined $(PKG_CFLAGS)
FUZZ_OBJS := $(patsubst %.c,build/fuzz/obj/%.o,$(wildcard lib/*.c) \
  store/jobs.c cli/csv.c)

build/fuzz/obj/%.o: %.c
	@mkdir -p $(@D)
	$(call say,FUZZ,$<)
	$(Q)$(CLANG) $(FUZZ_CFLAGS) -MMD -MP -c -o $@ $<

build/fuzz/%: build/fuzz/obj/tests/fuzz/%.o $(FUZZ_OBJS)
	$(call say,LD,$@)
	$(Q)$(CLANG) -fsanitize=fuzzer,address,undefined -o $@ $^ $(LIB_LIBS) -lcurl

fuzz: $(FUZZERS)
	$(Q)printf '%s\n' $(FUZZERS) | xargs -P $$(nproc) -n 1 tests/fuzz/run.sh $(SECONDS)

# ---- the rest ------------------------------------------------------------------

bench: all $(BENCH_TOOLS)
	$(Q)LATCHKEY_BUILD=$(BUILD) $(PYTHON) bench/run.py $(BENCH_ARGS)

$(BUILD)/bench/%: $(BUILD)/obj/bench/%.o $(STORE_OBJS) $(BUILD)/liblatchkey.a
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LIB_LIBS) $(DAEMON_LIBS)

# nginx/ is written the way nginx is, which clang-format cannot say.
# Root may run this in another user's clone, which git alone would refuse; and
# there may be no git at all.
SOURCES = $(shell git -c safe.directory='*' ls-files '*.c' '*.h' ':!nginx/' 2>/dev/null || \
  find * \( -path build -o -path nginx -o -name node_modules \) -prune -o -name '*.[ch]' -print)

fmt:
	$(Q)clang-format -i $(SOURCES)

fmt-check:
	$(Q)clang-format --dry-run -Werror $(SOURCES)

# One file a run: clang-tidy mixes up files that it is given together.
lint: fmt-check $(SQL_NAMES) $(if $(GATEWAY),lint-nginx)
	$(Q)printf '%s\n' $(filter-out tests/%,$(filter %.c,$(SOURCES))) | \
	  xargs -P 2 -I {} clang-tidy --quiet {} -- -std=gnu11 -D_GNU_SOURCE \
	  -Iinclude -I. -I$(GEN) $(PKG_CFLAGS) 2>/dev/null

# nginx builds with its own warnings; these are ours as far as its headers and
# its habits allow.
lint-nginx: $(NGINX_OBJS)/Makefile
	$(Q)for file in nginx/*.c; do $(CC) -fsyntax-only -Wall -Wextra -Werror -Wshadow \
	  -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wno-unused-parameter \
	  -Iinclude $(patsubst %,-isystem $(NGINX_SRC)/src/%,core event event/modules os/unix http \
	  http/modules http/v2) -isystem $(NGINX_OBJS) $$file || exit 1; done
	$(Q)! grep -nE '.{81,}|[[:space:]]$$|	' nginx/*.[ch] /dev/null

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/sbin \
	  $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(LIBDIR)/pkgconfig \
	  $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/man/man5 \
	  $(DESTDIR)$(PREFIX)/share/man/man8 $(DESTDIR)$(PREFIX)/share/doc/latchkey \
	  $(DESTDIR)$(PREFIX)/share/bash-completion/completions \
	  $(DESTDIR)$(PREFIX)/lib/systemd/system
	install -m 755 $(BUILD)/latchkey $(DESTDIR)$(PREFIX)/bin/
	install -m 755 $(BUILD)/latchkeyd $(DESTDIR)$(PREFIX)/sbin/
	install -m 644 include/latchkey.h $(DESTDIR)$(PREFIX)/include/
	install -m 644 $(BUILD)/liblatchkey.a $(DESTDIR)$(LIBDIR)/
	install -m 755 $(BUILD)/liblatchkey.so $(DESTDIR)$(LIBDIR)/liblatchkey.so.0
	ln -sf liblatchkey.so.0 $(DESTDIR)$(LIBDIR)/liblatchkey.so
	install -m 644 $(BUILD)/latchkey.pc $(DESTDIR)$(LIBDIR)/pkgconfig/
	install -m 644 $(BUILD)/latchkeyd.service $(DESTDIR)$(PREFIX)/lib/systemd/system/
	$(if $(MODULE),install -d $(DESTDIR)$(LIBDIR)/nginx/modules)
	$(if $(MODULE),install -m 644 $(MODULE) $(DESTDIR)$(LIBDIR)/nginx/modules/)
	install -m 644 man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	install -m 644 man/*.5 $(DESTDIR)$(PREFIX)/share/man/man5/
	install -m 644 man/*.8 $(DESTDIR)$(PREFIX)/share/man/man8/
	install -m 644 packaging/completions/latchkey $(DESTDIR)$(PREFIX)/share/bash-completion/completions/
	install -m 644 README.md NEWS.md LICENSE packaging/latchkeyd.conf \
	  packaging/nginx-latchkey.conf \
	  docs/*.md $(DESTDIR)$(PREFIX)/share/doc/latchkey/

clean:
	rm -rf build

-include $(shell find $(BUILD)/obj build/fuzz/obj -name '*.d' 2>/dev/null)
