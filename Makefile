# Latchkey's build. `make help` lists the targets.
#
#   make SANITIZE=address,undefined   a sanitizer build, in build/address-undefined
#   make SANITIZE=thread              likewise, in build/thread
#   make FAULTS=1                     with fault points for tests, in build/faults
#   make V=1                          shows the commands

CC       ?= cc
CLANG    ?= clang
PYTHON   ?= /usr/bin/python3
PREFIX   ?= /usr/local
OPT      ?= -O2 -g
SANITIZE ?=
FAULTS   ?=
V        ?=

comma := ,
flavour := $(subst $(comma),-,$(SANITIZE))$(if $(FAULTS),$(if $(SANITIZE),-)faults)
BUILD ?= build$(if $(flavour),/$(flavour))

Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-5s %s\n' '$(1)' '$(2)')

PKGS := libuv sqlite3 hiredis libcrypto inih
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)

CFLAGS_ALL := -std=gnu11 -Wall -Wextra -Werror -Wshadow -Wpointer-arith \
  -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wno-unused-parameter \
  -fPIC -fvisibility=default -D_GNU_SOURCE -Iinclude -I. $(OPT) $(PKG_CFLAGS) \
  $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer) \
  $(if $(FAULTS),-DLK_FAULTS) $(CFLAGS)
LDFLAGS_ALL := $(if $(SANITIZE),-fsanitize=$(SANITIZE)) $(LDFLAGS)

LIB_LIBS    := -lcrypto -lhiredis
DAEMON_LIBS := -luv -lsqlite3 -linih -lcrypto -lpthread
objs = $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard $(1)))

LIB_OBJS    := $(call objs,lib/*.c)
STORE_OBJS  := $(call objs,store/*.c)
DAEMON_OBJS := $(call objs,daemon/*.c)
CLI_OBJS    := $(call objs,cli/*.c)
# Everything of the daemon but its main, for tests that link it.
DAEMON_PARTS := $(filter-out $(BUILD)/obj/daemon/main.o,$(DAEMON_OBJS))

UNIT_TESTS    := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/unit/test_*.c tests/store/test_*.c))
TEST_TOOLS    := $(patsubst tests/%.c,$(BUILD)/tests/%,$(filter-out tests/unit/% tests/fuzz/% tests/store/test_%,$(wildcard tests/*/*.c)))
TEST_SUPPORT  :=
BENCH_TOOLS   := $(patsubst %.c,$(BUILD)/%,$(wildcard bench/*.c))
FUZZERS       := $(patsubst tests/fuzz/%.c,build/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))

.PHONY: all check check-unit fuzz bench crash fmt fmt-check lint install clean help tests tools
.SECONDARY:

all: $(BUILD)/latchkeyd $(BUILD)/latchkey $(BUILD)/liblatchkey.a $(BUILD)/liblatchkey.so $(BUILD)/latchkey.pc

help:
	@sed -n '/^#/!q;s/^# \{0,1\}//p' Makefile
	@echo "targets: all check check-unit fuzz bench crash fmt lint install clean"

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CFLAGS_ALL) -MMD -MP -c -o $@ $<

$(BUILD)/liblatchkey.a: $(LIB_OBJS)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/liblatchkey.so: $(LIB_OBJS)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -shared -Wl,-soname,liblatchkey.so.0 -o $@ $^ $(LIB_LIBS)

$(BUILD)/latchkeyd: $(DAEMON_OBJS) $(STORE_OBJS) $(BUILD)/liblatchkey.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(DAEMON_LIBS)

$(BUILD)/latchkey: $(CLI_OBJS) $(BUILD)/liblatchkey.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LIB_LIBS)

$(BUILD)/latchkey.pc: packaging/latchkey.pc.in Makefile
	@mkdir -p $(@D)
	$(Q)sed -e 's|@PREFIX@|$(PREFIX)|' \
	  -e "s|@VERSION@|$$(sed -n 's/^.define LATCHKEY_VERSION "\(.*\)"/\1/p' include/latchkey.h)|" $< >$@

# ---- tests -------------------------------------------------------------------

tests: $(UNIT_TESTS) $(TEST_TOOLS)

$(BUILD)/tests/unit/%: $(BUILD)/obj/tests/unit/%.o $(DAEMON_PARTS) $(STORE_OBJS) $(BUILD)/liblatchkey.a
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LIB_LIBS) $(DAEMON_LIBS) -lcmocka

$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(DAEMON_PARTS) $(STORE_OBJS) $(BUILD)/liblatchkey.a
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LIB_LIBS) $(DAEMON_LIBS) -lcmocka

check-unit: $(UNIT_TESTS)
	$(Q)for test in $(UNIT_TESTS); do echo "== $$test"; $$test || exit 1; done

# The whole run: unit and store tests, then pytest against the real programs.
check: all tests
	$(Q)$(MAKE) --no-print-directory check-unit
	$(Q)LATCHKEY_BUILD=$(BUILD) $(PYTHON) -m pytest -q tests

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
