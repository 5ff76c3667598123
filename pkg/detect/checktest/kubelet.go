package checktest

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
)

// serveKubeletMetrics answers with the content of kubelet's /metrics and /metrics/probes.
func serveKubeletMetrics(t *testing.T, h *host.Host, file txtar.File) {
	t.Helper()
	metrics, err := kubelet.ParseMetrics(bytes.NewReader(file.Data), kubelet.KubeletMetrics())
	h.Kubelet.Scrape = func(context.Context) (*kubelet.Scrape, error) {
		if err != nil {
			return nil, fmt.Errorf("get https://127.0.0.1:10250/metrics: parse: %w", err)
		}
		return &kubelet.Scrape{At: h.Clock(), Metrics: metrics}, nil
	}
}

// failKubeletMetrics fails with that error; "forbidden", "not configured" and "timeout" are known.
func failKubeletMetrics(_ *testing.T, h *host.Host, file txtar.File) {
	text := strings.TrimSpace(string(file.Data))
	err := map[string]error{"forbidden": hosterr.ErrForbidden, "not configured": hosterr.ErrNotConfigured,
		"timeout": context.DeadlineExceeded}[text]
	if err == nil {
		err = errors.New(text)
	}
	h.Kubelet.Scrape = func(context.Context) (*kubelet.Scrape, error) { return nil, err }
}

// setKubeletProcess finds the kubelet among the processes of the machine.
func setKubeletProcess(t *testing.T, h *host.Host, _ txtar.File) {
	find := discover.KubeletFinder(h.Files, h.Paths)
	h.Kubelet.Process = func() (host.Process, error) {
		hosttest.RootsDaemons(t, h.Files.Root) // of this moment
		return find()
	}
}

// failKubeletPods answers the request for pods with that error.
func failKubeletPods(_ *testing.T, h *host.Host, file txtar.File) {
	err := errors.New(strings.TrimSpace(string(file.Data)))
	h.Kubelet.Pods = func(context.Context) ([]corev1.Pod, error) { return nil, err }
}

// serveCRI is the runtime's answer over CRI; an error instead of all answers.
func serveCRI(t *testing.T, h *host.Host, file txtar.File) {
	t.Helper()
	var answers struct {
		Error      string
		Sandboxes  []*cri.PodSandbox
		Containers []*cri.Container
		Status     *cri.RuntimeStatus
	}
	strictJSON(t, file, &answers)
	var err error
	if answers.Error != "" {
		err = errors.New(answers.Error)
	}
	h.Runtime.Sandboxes = func(context.Context) ([]*cri.PodSandbox, error) { return answers.Sandboxes, err }
	h.Runtime.Containers = func(context.Context) ([]*cri.Container, error) { return answers.Containers, err }
	h.Runtime.Status = func(context.Context) (*cri.StatusResponse, error) {
		return &cri.StatusResponse{Status: answers.Status}, err
	}
}

// setKubeletServing is the certificate in PEM that kubelet's API shows; "none", "not configured" or an error instead.
func setKubeletServing(_ *testing.T, h *host.Host, file txtar.File) {
	text := strings.TrimSpace(string(file.Data))
	certificate, err := checkkit.ParseCertificate(file.Data, "shown")
	if err != nil {
		err = map[string]error{"none": hosterr.ErrNoCertificate, "not configured": hosterr.ErrNotConfigured}[text]
	}
	if err == nil && certificate == nil {
		err = errors.New(text)
	}
	h.Kubelet.ServingCertificate = func(context.Context) (*x509.Certificate, error) { return certificate, err }
}

// setTime says whether the wall clock is synchronised: yes, no, or an error.
func setTime(_ *testing.T, h *host.Host, file txtar.File) {
	text := strings.TrimSpace(string(file.Data))
	h.TimeClock = func() (host.ClockState, error) {
		switch text {
		case "yes":
			return host.ClockState{}, nil
		case "no":
			return host.ClockState{Unsynchronised: true, MaxError: host.MaxClockError}, nil
		}
		return host.ClockState{}, errors.New(text)
	}
}

// setNode is the apiserver's answer to a request for the Node: "not found", "not asked" (the check must not ask) or an
// error instead.
func setNode(t *testing.T, h *host.Host, file txtar.File) {
	t.Helper()
	var node *corev1.Node
	text := strings.TrimSpace(string(file.Data))
	if strings.HasPrefix(text, "{") {
		strictJSON(t, file, &node)
	}
	h.Cluster.Node = func(context.Context) (*corev1.Node, error) {
		switch {
		case node != nil:
			return node, nil
		case text == "not found":
			return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, "fixture")
		case text == "not asked":
			t.Error("the apiserver was asked")
		}
		return nil, errors.New(text)
	}
}
