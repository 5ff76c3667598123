package socket

import (
	"net/netip"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestParseSockets(t *testing.T) {
	data, err := os.ReadFile("testdata/tcp")
	if err != nil {
		t.Fatal(err)
	}
	port := netip.MustParseAddrPort
	want := []TCP{
		{Local: port("127.0.0.1:10248"), Remote: port("0.0.0.0:0"), Listens: true, Waiting: 2, Inode: 24342},
		{Local: port("127.0.0.1:10249"), Remote: port("0.0.0.0:0"), Listens: true, Inode: 24343},
		{Local: port("127.0.0.1:10248"), Remote: port("127.0.0.1:40002"), Inode: 25001},
	}
	got, err := parseSockets(string(data), tcpListen)
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	for _, bad := range []string{"sl\n 0: x", "sl\n0: 0100007F 0:0 0A a b 0 0 0 1",
		"sl\n0: 0100007F:XYZ 0:0 0A a b 0 0 0 1", "sl\n0: 0100007F:2808 00000000:0000 0A 0:x b 0 0 0 1"} {
		if _, err := parseSockets(bad, tcpListen); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func FuzzParseSockets(f *testing.F) {
	f.Add("  sl  local_address\n   0: 0100007F:2808 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 24342 1\n")
	f.Fuzz(func(t *testing.T, text string) {
		if got, err := parseSockets(text, tcpListen); err != nil && got != nil {
			t.Errorf("both %v and %v", got, err)
		}
	})
}
