package kube

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

type noPods struct {
	podresources.UnimplementedPodResourcesListerServer
}

func (noPods) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse,
	error) {
	return &podresources.ListPodResourcesResponse{}, nil
}

// Monitors mount the directory of the socket: a listener there is trusted only if it is kubelet's own process.
func TestPodNamesAreKubelets(t *testing.T) {
	root := hosttest.ShortDir(t)
	if err := os.Mkdir(filepath.Join(root, "pod-resources"), 0o750); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(root, "pod-resources", "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, noPods{})
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-done })
	for name, test := range map[string]struct {
		kubelet int
		err     error
		want    string // part of the error
	}{
		"kubelet":         {os.Getpid(), nil, ""},
		"another process": {os.Getpid() + 1, nil, "not kubelet, which is process"},
		"no kubelet runs": {0, fs.ErrNotExist, "kubelet's podresources: file does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			k := &kubeletClient{paths: host.Paths{KubeletRoot: root}, process: func() (host.Process, error) {
				return host.Process{PID: test.kubelet}, test.err
			}}
			names, err := k.podNames(t.Context())
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) ||
				(names == nil) != (err != nil) || test.err != nil && !errors.Is(err, test.err) {
				t.Errorf("%v, %v", names, err)
			}
		})
	}
}
