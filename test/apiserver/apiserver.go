// Package apiserver runs an etcd and a kube-apiserver on loopback, for tests of those who speak with one and need no
// node. A test that uses it is asked for by a flag: the kube-apiserver is one that a lab has built.
package apiserver

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/loopback"
	"github.com/nodeagent/nodeagent/test/need"
)

// tokens are those of the administrator, of a user without rights, and of the node "node-a": token, user, UID, groups.
const tokens = "admin,admin,1,system:masters\nagent,agent,2\nnode,system:node:node-a,3,system:nodes\n"

// Server is a kube-apiserver. Its administrator has the token "admin"; "agent" has no rights but those that the test
// gives it; "node" is the identity of the kubelet of node-a.
type Server struct {
	URL    string
	CAFile string
	Key    *ecdsa.PrivateKey // that it signs the tokens of ServiceAccounts with

	t   testing.TB
	dir string
	bin string
	cmd *exec.Cmd

	etcd string   // its URL
	args []string // of the apiserver
}

// Start starts one with additional flags and Debian's etcd, and waits until it is ready. It ends with the test. root is
// the checkout.
func Start(t testing.TB, root string, flags ...string) *Server {
	t.Helper()
	return StartWith(t, need.Program(t, "etcd"), root, flags...)
}

// StartWith starts one with another etcd.
func StartWith(t testing.TB, etcd, root string, flags ...string) *Server {
	t.Helper()
	built, _ := filepath.Glob(filepath.Join(root, ".cache/kubernetes-v*/kube-apiserver")) // the pattern is well-formed
	need.Has(t, len(built) > 0, "a kube-apiserver: go run ./test/lab/labctl build")
	s := &Server{t: t, dir: t.TempDir()}
	client, peer, address := "http://"+loopback.Free(t), "http://"+loopback.Free(t), loopback.Free(t)
	s.URL, s.CAFile = "https://"+address, filepath.Join(s.dir, "pki/apiserver.crt")
	s.run(etcd, "--data-dir", s.dir+"/etcd", "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	s.write("tokens", []byte(tokens))
	_, port, _ := net.SplitHostPort(address)
	s.etcd, s.bin = client, filepath.Dir(built[len(built)-1])
	s.args = append(flags, "--etcd-servers", client, "--bind-address", loopback.Address(), "--secure-port", port,
		"--cert-dir", s.dir+"/pki", "--token-auth-file", s.dir+"/tokens", "--authorization-mode=Node,RBAC",
		"--disable-admission-plugins=ServiceAccount", "--enable-admission-plugins=NodeRestriction",
		"--service-cluster-ip-range=10.96.0.0/16", "--service-account-issuer=https://test.invalid",
		"--service-account-key-file", s.key(), "--service-account-signing-key-file", s.dir+"/sa.key")
	s.Restart()
	return s
}

// Restart starts the apiserver after Stop, at the same address, and waits until it is ready.
func (s *Server) Restart() {
	s.t.Helper()
	s.cmd = s.run(filepath.Join(s.bin, "kube-apiserver"), s.args...)
	for deadline := time.Now().Add(10 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if status, _, err := s.Do(http.MethodGet, "/readyz", nil); err == nil && status == http.StatusOK {
			return
		}
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(filepath.Join(s.dir, "kube-apiserver.log"))
			s.t.Fatalf("kube-apiserver is not ready: %s", log[max(0, len(log)-4000):])
		}
	}
}

// Run runs a component of the same build, for example kube-scheduler, as the administrator. It ends with the test.
func (s *Server) Run(component string, flags ...string) *exec.Cmd {
	s.t.Helper()
	return s.run(filepath.Join(s.bin, component), append(flags, "--kubeconfig", s.Kubeconfig(component, "admin"), "--secure-port=0")...)
}

// Stop ends the apiserver: from now on nothing answers.
func (s *Server) Stop() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// Signal sends the apiserver a signal, for example SIGSTOP.
func (s *Server) Signal(signal os.Signal) error { return s.cmd.Process.Signal(signal) }

// Compact makes etcd forget the history before the present.
func (s *Server) Compact() {
	s.t.Helper()
	var reply struct{ Header struct{ Revision string } }
	for _, request := range []struct{ path, body string }{{"range", `{"key":"AA=="}`}, {"compaction", ""}} {
		if request.body == "" {
			request.body = fmt.Sprintf(`{"revision":%q,"physical":true}`, reply.Header.Revision)
		}
		answer, err := http.Post(s.etcd+"/v3/kv/"+request.path, "application/json", strings.NewReader(request.body))
		if err != nil {
			s.t.Fatal(err)
		}
		defer answer.Body.Close()
		if err := json.NewDecoder(answer.Body).Decode(&reply); err != nil || answer.StatusCode != http.StatusOK {
			s.t.Fatalf("etcd: %s: %s %v", request.path, answer.Status, err)
		}
	}
}

// Terminate ends the apiserver after the requests that it has begun, and their lines in the audit log.
func (s *Server) Terminate() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
}

// Do makes a request as the administrator.
func (s *Server) Do(method, path string, body []byte) (status int, answer []byte, err error) {
	return s.DoAs("admin", method, path, body)
}

// DoAs makes a request with a token.
func (s *Server) DoAs(token, method, path string, body []byte) (status int, answer []byte, err error) {
	authorities, err := os.ReadFile(s.CAFile)
	if err != nil {
		return 0, nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authorities)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(s.t.Context(), method, s.URL+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	response, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

// Create posts an object, and decodes what was made of it unless into is nil.
func (s *Server) Create(path, body string, into any) {
	s.t.Helper()
	s.must(http.MethodPost, path, body, into)
}

// Delete deletes an object at once.
func (s *Server) Delete(path string) {
	s.t.Helper()
	s.must(http.MethodDelete, path+"?gracePeriodSeconds=0", "", nil)
}

func (s *Server) must(method, path, body string, into any) {
	s.t.Helper()
	status, answer, err := s.Do(method, path, []byte(body))
	if err == nil && status >= 300 {
		err = fmt.Errorf("%d: %s", status, answer)
	}
	if err == nil && into != nil {
		err = json.Unmarshal(answer, into)
	}
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
}

// Kubeconfig writes one for a token, and returns its name.
func (s *Server) Kubeconfig(name, token string) string {
	return s.write(name+".kubeconfig", fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: u, user: {token: %q}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, s.URL, s.CAFile, token))
}

func (s *Server) write(name string, text []byte) string {
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

func (s *Server) key() string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		s.t.Fatal(err)
	}
	s.Key = key
	return s.write("sa.key", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}))
}

func (s *Server) run(program string, args ...string) *exec.Cmd {
	s.t.Helper()
	log, err := os.Create(filepath.Join(s.dir, filepath.Base(program)+".log"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}
