package server

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"queen/fsm"
)

// listen serves s on a port of its own, with TLS when there is a certificate.
func listen(t *testing.T, s *Server, certFile, keyFile string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l, certFile, keyFile) }()
	t.Cleanup(func() {
		if err := s.http.Close(); err != nil {
			t.Error(err)
		}
		<-served
	})
	return l.Addr().String()
}

// certificate makes one for 127.0.0.1 and returns the files and what trusts it.
func certificate(t *testing.T) (certFile, keyFile string, roots *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, data := range map[string][]byte{certFile: certPEM, keyFile: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	roots = x509.NewCertPool()
	roots.AppendCertsFromPEM(certPEM)
	return certFile, keyFile, roots
}

func impatient(c *Config) {
	c.Limits.HeaderTime, c.Limits.BodyGrace, c.Limits.BodyRate = 200*time.Millisecond, 200*time.Millisecond, 1<<20
	c.Limits.Connections = 1 // a connection that is held keeps everybody out
}

// closes waits until the server has ended a connection, and returns what it
// said before. The test's own deadline is far above every limit.
func closes(t *testing.T, c net.Conn) string {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if os.IsTimeout(err) {
		t.Fatalf("the connection is still open; so far: %q", answer)
	}
	return string(answer)
}

// TestSlowClients: nobody holds a connection by sending next to nothing, plain
// or with TLS. After each of them the only connection is free again.
func TestSlowClients(t *testing.T) {
	certFile, keyFile, roots := certificate(t)
	const head = "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
	for _, c := range []struct {
		name, send string
		drip       string // sent again and again
		want       string // in the answer
		raw        bool   // without TLS, also where there is TLS
	}{
		{"nothing", "", "", "", true},
		{"half a header", "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nX-A: ", "", "", false},
		{"a header byte by byte", "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nX-A: ", "a", "", false},
		{"no body", head, "", "408 Request Timeout", false},
		{"a body byte by byte", head, "{", "408 Request Timeout", false},
		{"a body in chunks byte by byte", "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\n{\r\n", "408 Request Timeout", false},
		{"a body that nobody reads", "POST /api/v1/nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", "{", "404 Not Found", false},
		{"a body where none belongs", "GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", "{", "200 OK", false},
	} {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, tls %v", c.name, secure), func(t *testing.T) {
				t.Parallel()
				s := newTestServer(t, &fakeEngine{}, impatient)
				addr := ""
				if secure {
					addr = listen(t, s, certFile, keyFile)
				} else {
					addr = listen(t, s, "", "")
				}
				var conn net.Conn
				conn, err := net.Dial("tcp", addr)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				if secure && !c.raw {
					conn = tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"})
				}
				if _, err := io.WriteString(conn, c.send); err != nil {
					t.Fatal(err)
				}
				if c.drip != "" {
					go func() {
						for {
							if _, err := io.WriteString(conn, c.drip); err != nil {
								return
							}
							time.Sleep(20 * time.Millisecond) // the pace of the client
						}
					}()
				}
				if answer := closes(t, conn); !strings.Contains(answer, c.want) {
					t.Errorf("answer %q, want %q", answer, c.want)
				}
				client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}, Timeout: 20 * time.Second}
				defer client.CloseIdleConnections()
				scheme := map[bool]string{false: "http://", true: "https://"}[secure]
				resp, err := client.Get(scheme + addr + "/health")
				if err != nil {
					t.Fatalf("the connection is not free again: %v", err)
				}
				resp.Body.Close()
			})
		}
	}
}

// TestSteadyBodies: a body that takes longer than the grace is taken as long as
// it keeps the rate; and a wait after it is not cut short by its deadline.
func TestSteadyBodies(t *testing.T) {
	e := &fakeEngine{}
	s := newTestServer(t, e, func(c *Config) { c.Limits.BodyGrace, c.Limits.BodyRate = 300*time.Millisecond, 2<<10 })
	e.decide = func(c *fsm.Call) error {
		if p, ok := c.Body.(*fsm.Push); ok {
			time.Sleep(500 * time.Millisecond) // longer than the grace
			for i := range p.Items {
				p.Items[i].Status = fsm.Queued
			}
		}
		return nil
	}
	conn, err := net.Dial("tcp", listen(t, s, "", ""))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := `{"items":[{"queue":"q","payload":"` + strings.Repeat("x", 8<<10) + `"}]}`
	fmt.Fprintf(conn, "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", len(body))
	begun := time.Now()
	for rest := body; rest != ""; {
		n := min(len(rest), 512)
		if _, err := io.WriteString(conn, rest[:n]); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
		time.Sleep(50 * time.Millisecond) // 10 KiB a second
	}
	if took := time.Since(begun); took < 600*time.Millisecond {
		t.Fatalf("the body took %v: it proves nothing", took)
	}
	reader := bufio.NewReader(conn)
	resp, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	if resp.StatusCode != http.StatusCreated {
		t.Errorf("status %d", resp.StatusCode)
	}
	// The connection is as good as before.
	time.Sleep(400 * time.Millisecond)
	fmt.Fprintf(conn, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
	if resp, err = http.ReadResponse(reader, nil); err != nil || resp.StatusCode != 200 {
		t.Errorf("the next request: %v %v", resp, err)
	}
}

func TestHeaderLimit(t *testing.T) {
	s := newTestServer(t, &fakeEngine{}, func(c *Config) { c.Limits.HeaderBytes = 4 << 10 })
	addr := listen(t, s, "", "")
	for _, c := range []struct {
		size int
		want string
	}{{2 << 10, "200 OK"}, {16 << 10, "431 "}} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-A: %s\r\n\r\n", strings.Repeat("a", c.size))
		if answer := closes(t, conn); !strings.Contains(answer, c.want) {
			t.Errorf("%d bytes: %.60q", c.size, answer)
		}
		conn.Close()
	}
}

// TestTLS: HTTP/1.1 over TLS 1.2 and 1.3, and nothing older.
func TestTLS(t *testing.T) {
	certFile, keyFile, roots := certificate(t)
	s := newTestServer(t, &fakeEngine{}, nil)
	addr := listen(t, s, certFile, keyFile)
	for _, c := range []struct {
		version uint16
		taken   bool
	}{{tls.VersionTLS11, false}, {tls.VersionTLS12, true}, {tls.VersionTLS13, true}} {
		client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{
			RootCAs: roots, MinVersion: c.version, MaxVersion: c.version}}}
		resp, err := client.Get("https://" + addr + "/health")
		if (err == nil) != c.taken {
			t.Fatalf("version %x: %v", c.version, err)
		}
		if err == nil {
			if resp.ProtoMajor != 1 || resp.StatusCode != 200 {
				t.Errorf("version %x: %s %d", c.version, resp.Proto, resp.StatusCode)
			}
			resp.Body.Close()
		}
		client.CloseIdleConnections()
	}
	resp, err := http.Get("http://" + addr + "/health")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("plain HTTP on the port of TLS: %d", resp.StatusCode)
	}
}
