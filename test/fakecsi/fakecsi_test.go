package fakecsi

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/test/need"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, o Options) (*Driver, kubelet.Plugins) {
	t.Helper()
	root, err := os.MkdirTemp("", "fakecsi") // t.TempDir is too long for the name of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	o.Name, o.KubeletRoot = "fake.example.com", root
	d, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Stop() })
	return d, kubelet.NewPlugins(root)
}

func TestKnobs(t *testing.T) {
	d, plugins := start(t, Options{})
	ask := func(knobs Knobs) (info, ready, id error) {
		d.Set(knobs)
		limit := time.Minute
		if knobs.HangGetInfo {
			limit = time.Second / 5
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		_, info = plugins.GetInfo(ctx, d.Socket())
		isReady, ready := plugins.Probe(ctx, d.Endpoint())
		if ready == nil && !isReady {
			ready = errors.New("not ready")
		}
		name, id := plugins.NodeID(ctx, d.Endpoint())
		if id == nil && name == "" {
			id = errors.New("empty")
		}
		return info, ready, id
	}
	for name, tt := range map[string]struct {
		knobs           Knobs
		info, ready, id bool
	}{
		"well":          {Knobs{}, true, true, true},
		"refuseGetInfo": {Knobs{RefuseGetInfo: true}, false, true, true},
		"notReady":      {Knobs{NotReady: true}, true, false, true},
		"probeError":    {Knobs{ProbeError: "x"}, true, false, true},
		"nodeInfoError": {Knobs{NodeInfoError: "x"}, true, true, false},
		"emptyNodeID":   {Knobs{EmptyNodeID: true}, true, true, false},
		"hangGetInfo":   {Knobs{HangGetInfo: true}, false, false, false}, // the deadline is for all three
	} {
		info, ready, id := ask(tt.knobs)
		if (info == nil) != tt.info || (ready == nil) != tt.ready || (id == nil) != tt.id {
			t.Errorf("%s: GetInfo %v, Probe %v, NodeGetInfo %v", name, info, ready, id)
		}
	}
}

func TestEnds(t *testing.T) {
	d, plugins := start(t, Options{})
	if err := d.Abandon(); err != nil {
		t.Fatal(err)
	}
	if err := plugins.Connect(t.Context(), d.Socket()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("after a kill: %v", err)
	}
	again, err := Start(t.Context(), d.options)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := plugins.Connect(t.Context(), d.Socket()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after a stop: %v", err)
	}
}

func TestVolumes(t *testing.T) {
	need.Root(t, "mounts")
	for _, publish := range []Publish{PublishTmpfs, PublishBind} {
		t.Run(string(publish), func(t *testing.T) {
			d, _ := start(t, Options{Publish: publish})
			conn, err := grpc.NewClient("unix://"+d.Endpoint(),
				grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			client, ctx := csi.NewNodeClient(conn), t.Context()
			dir := t.TempDir()
			staging, target := filepath.Join(dir, "staging"), filepath.Join(dir, "target")
			t.Cleanup(func() { _ = unmount(target); _ = unmount(staging) })

			for range 2 { // each call may come twice
				_, stageErr := client.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: "v",
					StagingTargetPath: staging})
				_, publishErr := client.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: "v",
					StagingTargetPath: staging, TargetPath: target})
				if err := errors.Join(stageErr, publishErr); err != nil || !mounted(staging) || !mounted(target) {
					t.Fatalf("error %v, mounted %t %t", err, mounted(staging), mounted(target))
				}
			}
			for range 2 {
				_, unpublishErr := client.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: "v",
					TargetPath: target})
				_, unstageErr := client.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: "v",
					StagingTargetPath: staging})
				if err := errors.Join(unpublishErr, unstageErr); err != nil || mounted(staging) || mounted(target) {
					t.Fatalf("error %v, mounted %t %t", err, mounted(staging), mounted(target))
				}
			}
		})
	}
}
