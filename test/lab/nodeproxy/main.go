// Command nodeproxy connects the lab's apiserver to kubelet. The node's address has no listener, because kubelet
// rejects a loopback address and the lab listens on no other; the apiserver asks this proxy, over a Unix socket and
// with HTTP CONNECT, for a connection to it and gets one to the loopback address.
//
// It serves root only (the socket's mode) and supports no other protocol.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: nodeproxy SOCKET NODE-IP REAL-IP")
		os.Exit(2)
	}
	fmt.Fprintln(os.Stderr, serve(os.Args[1], os.Args[2], os.Args[3]))
	os.Exit(1)
}

// serve returns the error that ended it.
func serve(socket, nodeIP, realIP string) error {
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			if err := connect(conn, nodeIP, realIP); err != nil && !errors.Is(err, io.EOF) {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
	}
}

// connect answers one CONNECT request and copies bytes until both sides are done.
func connect(client net.Conn, nodeIP, realIP string) error {
	reader := bufio.NewReader(client)
	request, err := http.ReadRequest(reader)
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(request.Host)
	if err != nil || request.Method != http.MethodConnect {
		fmt.Fprint(client, "HTTP/1.1 400 Bad Request\r\n\r\n")
		return fmt.Errorf("refused %s %s", request.Method, request.Host)
	}
	if host == nodeIP {
		host = realIP
	}
	server, err := net.DialTimeout("tcp", net.JoinHostPort(host, port), 10*time.Second)
	if err != nil {
		fmt.Fprint(client, "HTTP/1.1 502 Bad Gateway\r\n\r\n")
		return err
	}
	defer server.Close()
	if _, err := fmt.Fprint(client, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return err
	}
	go func() {
		io.Copy(server, reader)
		server.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(client, server)
	return err
}
