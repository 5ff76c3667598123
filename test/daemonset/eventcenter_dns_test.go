package daemonset

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/nodeagent/nodeagent/test/lab"
)

// asked makes the apiserver give the center's pods the test's name server, like kubelet gives every pod the cluster's.
const asked = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: eventcenter-dns}
spec:
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules:
    - {apiGroups: [apps], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [statefulsets]}
  mutations:
  - patchType: JSONPatch
    jsonPatch:
      expression: >-
        [JSONPatch{op: "add", path: "/spec/template/spec/dnsPolicy", value: "None"},
        JSONPatch{op: "add", path: "/spec/template/spec/dnsConfig", value: Object.spec.template.spec.dnsConfig{
        nameservers: ["%s"], searches: ["%[2]s.svc.cluster.local", "svc.cluster.local", "cluster.local"],
        options: [Object.spec.template.spec.dnsConfig.options{name: "ndots", value: "5"}]}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: eventcenter-dns}
spec: {policyName: eventcenter-dns}
`

// nameServer stands in for the cluster's DNS, which the lab does not have: it knows the center's pods, ready or not, by
// their names in the headless Service.
func (c *center) nameServer(t *testing.T) {
	t.Helper()
	apiserver := netip.MustParseAddr(c.kubectl(t, "get", "service", "-n", "default", "kubernetes", "-o",
		"jsonpath={.spec.clusterIP}")).As4()
	apiserver[3] = 10 // its place in most clusters
	address := netip.AddrFrom4(apiserver).String()
	c.run(t, "/sbin/ip", "addr", "add", address+"/32", "dev", lab.NodeLink)
	conn, err := net.ListenPacket("udp", address+":53")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		c.run(t, "/sbin/ip", "addr", "del", address+"/32", "dev", lab.NodeLink)
		c.kubectl(t, "delete", "mutatingadmissionpolicies,mutatingadmissionpolicybindings", "eventcenter-dns",
			"--ignore-not-found")
	})
	go func() {
		question := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(question)
			if err != nil {
				return
			}
			if answer, err := c.resolve(question[:n]); err == nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
	if err := c.KubectlApply(t.Context(), fmt.Sprintf(asked, address, namespace)); err != nil {
		t.Fatal(err)
	}
	c.awaitAsked(t, address)
}

// awaitAsked returns when the apiserver applies the policy, which its status does not show: a StatefulSet created now
// gets the name server.
func (c *center) awaitAsked(t *testing.T, address string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "asked.yaml")
	if err := os.WriteFile(file, []byte(`
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: asked, namespace: `+namespace+`}
spec:
  selector: {matchLabels: {app: asked}}
  template:
    metadata: {labels: {app: asked}}
    spec: {containers: [{name: asked, image: localhost/none}]}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, "the apiserver to ask the policy", func() error {
		out, err := c.Kubectl(t.Context(), "create", "--dry-run=server", "-f", file, "-o",
			"jsonpath={.spec.template.spec.dnsConfig.nameservers[*]}")
		if err == nil && string(out) != address {
			err = fmt.Errorf("the name server is %q", out)
		}
		return err
	})
}

// resolve answers a DNS query.
func (c *center) resolve(question []byte) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(question); err != nil || len(m.Questions) != 1 {
		return nil, fmt.Errorf("%d questions: %w", len(m.Questions), err)
	}
	q := m.Questions[0]
	m.Response, m.Authoritative, m.RCode, m.Additionals = true, true, dnsmessage.RCodeNameError, nil
	pod, domain, _ := strings.Cut(q.Name.String(), ".")
	if domain == "eventcenter-replicas."+namespace+".svc.cluster.local." {
		if ip := c.replicas.addresses(c)[pod].IP; ip.Is4() {
			m.RCode = dnsmessage.RCodeSuccess
			if q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1},
					Body: &dnsmessage.AResource{A: ip.As4()}}}
			}
		}
	}
	return m.Pack()
}

// centerPods are the center's pods as of a moment ago.
type centerPods struct {
	mu    sync.Mutex // guards what follows
	at    time.Time
	known map[string]centerPod
	turn  int
}

type centerPod struct {
	IP    netip.Addr
	ready bool
}

func (p *centerPods) addresses(c *center) map[string]centerPod {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.at) < time.Second {
		return p.known
	}
	var list struct {
		Items []struct {
			Metadata struct {
				Name              string
				DeletionTimestamp *time.Time
			}
			Status struct {
				PodIP      string
				Conditions []struct{ Type, Status string }
			}
		}
	}
	out, err := c.Kubectl(c.until, "get", "pods", "-n", namespace, "-l", "app.kubernetes.io/name=eventcenter", "-o", "json")
	if err != nil || json.Unmarshal(out, &list) != nil {
		return p.known
	}
	p.at, p.known = time.Now(), map[string]centerPod{}
	for _, item := range list.Items {
		ip, _ := netip.ParseAddr(item.Status.PodIP)
		one := centerPod{IP: ip}
		for _, condition := range item.Status.Conditions {
			if condition.Type == "Ready" && condition.Status == "True" && item.Metadata.DeletionTimestamp == nil {
				one.ready = true
			}
		}
		p.known[item.Metadata.Name] = one
	}
	return p.known
}

// ready returns the address of a ready pod, each in turn.
func (p *centerPods) ready(c *center) string {
	known := p.addresses(c)
	p.mu.Lock()
	defer p.mu.Unlock()
	for range 3 {
		p.turn++
		if one := known[fmt.Sprint("eventcenter-", p.turn%3)]; one.ready {
			return net.JoinHostPort(one.IP.String(), "10685")
		}
	}
	return "127.0.0.1:1" // refused, like kube-proxy
}
