package cni_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cni"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// As written by libcni for the bridge and host-local plugins of containernetworking/plugins 1.1.1.
const cachedAttachment = `{"kind":"cniCacheV1","containerId":"` + hosttest.ContainerID + `","config":"e30=","ifName":"eth0","networkName":"pods",
"netns":"/var/run/netns/cni-0f6d4d9c-3f4e-4c3b-9a53-1d2c3b4a5e6f",
"cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAMESPACE","default"],["K8S_POD_NAME","web"],["K8S_POD_UID","` + hosttest.PodUID + `"]],
"capabilityArgs":{"portMappings":[]},
"result":{"cniVersion":"1.0.0","interfaces":[{"mac":"aa:bb:cc:dd:ee:ff","name":"cni0"},{"mac":"aa:bb:cc:dd:ee:00","name":"veth1"},
{"mac":"aa:bb:cc:dd:ee:01","name":"eth0","sandbox":"/var/run/netns/cni-0f6d4d9c-3f4e-4c3b-9a53-1d2c3b4a5e6f"}],
"ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1","interface":2}]}}`

func TestParseAttachment(t *testing.T) {
	got, err := cni.ParseAttachment([]byte(cachedAttachment))
	if err != nil {
		t.Fatal(err)
	}
	netns := "/var/run/netns/cni-" + hosttest.PodUID
	want := cni.Attachment{
		Kind: "cniCacheV1", ContainerID: hosttest.ContainerID, IfName: "eth0", Network: "pods", Netns: netns,
		Args: map[string]string{"IgnoreUnknown": "1", "K8S_POD_NAMESPACE": "default", "K8S_POD_NAME": "web",
			"K8S_POD_UID": hosttest.PodUID},
		Interfaces: []cni.AttachmentInterface{
			{Name: "cni0", MAC: "aa:bb:cc:dd:ee:ff"}, {Name: "veth1", MAC: "aa:bb:cc:dd:ee:00"},
			{Name: "eth0", MAC: "aa:bb:cc:dd:ee:01", Sandbox: netns},
		},
		Addresses: []string{"10.1.0.2/24"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// One bad file hides no other, and is no error: it may stay forever.
func TestAttachments(t *testing.T) {
	root := t.TempDir()
	h := &host.Host{Files: host.Files{Root: root}, Paths: host.Paths{CNICacheDir: "/cni"}}
	if found, err := cni.Attachments(h); len(found) != 0 || err != nil {
		t.Fatalf("no cache: got %v, %v", found, err)
	}
	dir := filepath.Join(root, "cni/results")
	if err := os.MkdirAll(filepath.Join(dir, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{
		"good": cachedAttachment, "cut": cachedAttachment[:200], "empty": "", "nameless": `{"kind":"cniCacheV1"}`,
		"other": `{"kind":"cniCacheV9"}`, "list": "[]", "huge": `{"kind":"` + strings.Repeat("x", 1<<20) + `"}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found, err := cni.Attachments(h)
	var got []string
	for _, a := range found {
		if a.Malformed != "" {
			a.Kind = "malformed"
		}
		got = append(got, filepath.Base(a.File)+":"+a.Kind)
	}
	want := []string{
		"folder:", "good:cniCacheV1", "other:cniCacheV9",
		"cut:malformed", "empty:malformed", "nameless:malformed", "list:malformed", "huge:malformed",
	}
	if diff := cmp.Diff(want, got, cmpopts.SortSlices(strings.Compare)); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

func FuzzParseAttachment(f *testing.F) {
	f.Add([]byte(cachedAttachment))
	f.Add([]byte(`{"kind":"cniCacheV1","cniArgs":[["a"]],"result":{"ips":null}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := cni.ParseAttachment(data)
		if err != nil && !cmp.Equal(a, cni.Attachment{}) {
			t.Errorf("both a value and %v", err)
		}
		if err == nil && a.Kind == "cniCacheV1" && (a.ContainerID == "" || a.IfName == "" || a.Network == "") {
			t.Errorf("incomplete: %+v", a)
		}
	})
}
