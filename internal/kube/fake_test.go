package kube

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
)

const testNode = "node-a"

// fakeServer is an apiserver (or a kubelet) with scripted answers, over real TLS and HTTP/2.
type fakeServer struct {
	*httptest.Server
	t   *testing.T
	dir string // of the credentials

	mu       sync.Mutex // guards the fields below
	requests []*http.Request
	bodies   []string
	answer   http.HandlerFunc
}

func newFakeServer(t *testing.T, answer http.HandlerFunc) *fakeServer {
	t.Helper()
	f := &fakeServer{t: t, dir: t.TempDir(), answer: answer}
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(f.serve))
	f.EnableHTTP2 = true
	f.Config.ErrorLog = quiet()
	f.StartTLS()
	t.Cleanup(f.Close)
	f.write("ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw})))
	f.write("token", "secret-1")
	return f
}

func (f *fakeServer) serve(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	body := make([]byte, 1<<16)
	n, _ := r.Body.Read(body)
	f.requests, f.bodies = append(f.requests, r), append(f.bodies, string(body[:n]))
	answer := f.answer
	f.mu.Unlock()
	answer(w, r)
}

func (f *fakeServer) set(answer http.HandlerFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

// seen returns the requests since its last call.
func (f *fakeServer) seen() []*http.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := f.requests
	f.requests, f.bodies = nil, nil
	return seen
}

func (f *fakeServer) write(name, text string) string {
	path := filepath.Join(f.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	return path
}

// kubeconfig writes a kubeconfig with the token in a separate file.
func (f *fakeServer) kubeconfig() string {
	return f.write("kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: u, user: {tokenFile: %q}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, f.URL, filepath.Join(f.dir, "ca.crt"), filepath.Join(f.dir, "token")))
}

// client returns a client without the limit of one request a second.
func (f *fakeServer) client() *Client {
	f.t.Helper()
	c, err := New(Config{Node: testNode, Version: "1.2.3", Kubeconfig: f.kubeconfig()}, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	c.limiter = flowcontrol.NewFakeAlwaysRateLimiter()
	f.t.Cleanup(func() { c.Close() })
	return c
}

// object answers like an apiserver that received a request for protobuf.
func object(t *testing.T, o runtime.Object) http.HandlerFunc {
	t.Helper()
	body := encode(t, o)
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
		w.Write(body)
	}
}

func encode(t *testing.T, o runtime.Object) []byte {
	t.Helper()
	data, err := runtime.Encode(protobuf.NewSerializer(nil, nil), o)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// text answers anything.
func text(code int, contentType, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
		fmt.Fprint(w, body)
	}
}

// refusal answers with a Status like the apiserver's.
func refusal(code int, reason metav1.StatusReason, header ...string) http.HandlerFunc {
	body, _ := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: "refused by the test",
	})
	return text(code, "application/json", string(body), header...)
}

// script answers each request with the next handler, and repeats the last one.
func script(answers ...http.HandlerFunc) http.HandlerFunc {
	var mu sync.Mutex
	return func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		answer := answers[0]
		if len(answers) > 1 {
			answers = answers[1:]
		}
		mu.Unlock()
		answer(w, r)
	}
}

// mute never answers.
func mute(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func podList(version, next string, pods ...corev1.Pod) *corev1.PodList {
	return &corev1.PodList{
		TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"},
		ListMeta: metav1.ListMeta{ResourceVersion: version, Continue: next},
		Items:    pods,
	}
}

func pod(name, node string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "default", UID: types.UID("uid-of-" + name),
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "large"}},
		},
		Spec: corev1.PodSpec{NodeName: node},
	}
}

func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// quiet drops the server's complaints about handshakes that are meant to fail.
func quiet() *log.Logger { return log.New(io.Discard, "", 0) }
