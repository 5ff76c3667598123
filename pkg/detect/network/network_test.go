package network

import (
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

func FuzzParseCounterPairs(f *testing.F) {
	f.Add("Tcp: RtoAlgorithm MaxConn InSegs\nTcp: 1 -1 5\nUdp: InErrors\nUdp: 0\n")
	f.Add("Tcp: A\n")
	f.Fuzz(func(_ *testing.T, text string) { _, _ = parseCounterPairs(text) })
}

func FuzzParsePerCPU(f *testing.F) {
	f.Add("entries  drop early_drop\n00000001  00000000 0000000a\n00000001 00000001 00000000\n")
	f.Fuzz(func(t *testing.T, text string) {
		if p, err := parsePerCPU(text); err != nil && p.Sum != nil {
			t.Error("an error and a value")
		}
	})
}

func FuzzDefaultRoutes(f *testing.F) {
	f.Add("Iface\tDestination\neth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n")
	f.Add("00000000000000000000000000000000 00 00000000000000000000000000000000 00 fd000000000000000000000000000001 " +
		"00000400 00000003 00000000 00000003     eth0\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, parse := range []func(string) ([]defaultRoute, error){defaultRoutes4, defaultRoutes6} {
			if routes, err := parse(text); err != nil && routes != nil {
				t.Error("an error and a value")
			}
		}
	})
}

func FuzzParseBond(f *testing.F) {
	f.Add("Bonding Mode: x\nMII Status: up\n\nSlave Interface: eth0\nMII Status: down\nAggregator ID: 1\n")
	f.Fuzz(func(t *testing.T, text string) {
		if b, err := parseBond(text); err != nil && (b.mode != "" || b.members != nil) {
			t.Error("an error and a value")
		}
	})
}

func FuzzParseNetDev(f *testing.F) {
	f.Add("face |bytes\n  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n")
	f.Fuzz(func(t *testing.T, text string) {
		if counters, err := parseNetDev(text, []networkCard{{name: "eth0"}}); err != nil && counters != nil {
			t.Error("an error and a value")
		}
	})
}

func FuzzParseSoftnet(f *testing.F) {
	f.Add("00194bbf 000000e5 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 " +
		"00000000 00000001 00000000 00000000\n")
	f.Fuzz(func(t *testing.T, text string) {
		if counters, cpus, err := parseSoftnet(text); err != nil && (counters != nil || cpus != nil) {
			t.Error("an error and a value")
		}
	})
}

func FuzzParseSockstat(f *testing.F) {
	f.Add("sockets: used 17\nTCP: inuse 1 orphan 0 tw 0 alloc 1 mem 85\n")
	f.Fuzz(func(_ *testing.T, text string) { _, _ = parseSockstat(text) })
}

func FuzzDuplicateAddresses(f *testing.F) {
	f.Add("fe8000000000000000fc00fffe000001 04 40 20 88     eth0\n")
	f.Fuzz(func(t *testing.T, text string) {
		if failed, err := duplicateAddresses(text); err != nil && failed != nil {
			t.Error("an error and a value")
		}
	})
}
