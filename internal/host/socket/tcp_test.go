package socket

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest/thread"
	"github.com/nodeagent/nodeagent/internal/host/proc"
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

// A process whose main thread has ended still has its sockets and its network.
func TestSocketsWithoutMainThread(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	pid, h := thread.WithoutMain(t, func(c *exec.Cmd) { c.ExtraFiles = []*os.File{file} }), &host.Host{}
	held, err := Held(h, pid)
	if err != nil {
		t.Fatal(err)
	}
	all, err := OfTCP(h, pid)
	if err != nil || !slices.ContainsFunc(all, func(s TCP) bool { return s.Listens && held[s.Inode] }) {
		t.Errorf("%v is not among %v, %v", held, all, err)
	}
	if held, err := Held(h, 1<<22+1); !proc.Gone(err) {
		t.Errorf("of no process: %v, %v", held, err)
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
