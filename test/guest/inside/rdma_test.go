package inside

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestRDMAPort: a port of an RDMA card, emulated above Ethernet, loses its link and gets it back. Only its claim to be
// InfiniBand is not real: a port above Ethernet is left to link-state.
func TestRDMAPort(t *testing.T) {
	a := watch(t)
	run(t, "modprobe", "rdma_rxe")
	s := connect(t, "rdma", 7)
	run(t, "rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "rdma")
	const port = "/sys/class/infiniband/rxe0/ports/1"
	if layer := read(port + "/link_layer"); layer != "Ethernet" {
		t.Errorf("the port's link layer is %q", layer)
	}
	layer := filepath.Join(t.TempDir(), "link_layer")
	if err := os.WriteFile(layer, []byte("InfiniBand\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, "mount", "--bind", layer, port+"/link_layer")
	t.Cleanup(func() {
		run(t, "umount", port+"/link_layer")
		run(t, "rdma", "link", "delete", "rxe0")
	})
	a.await(3*time.Minute, "an observation of the healthy port", func(s status) bool {
		return slices.ContainsFunc(s.Checks, func(c checkStatus) bool {
			return c.Check == "infiniband" && c.Status == "healthy"
		})
	})
	s.cable(false)
	eventually(t, "loss of the link", func() bool { return read(port+"/state") == "1: DOWN" })
	a.awaitReason("infiniband", "PortDown", "rxe0/1", true)
	s.cable(true)
	a.awaitReason("infiniband", "", "rxe0/1", false)
}
