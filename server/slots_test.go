package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"queen/internal/vfs"
)

// Clients that announce large bodies and send nothing hold next to nothing of
// the admission budget: others go on.
func TestSilentClientsDoNotHoldTheBudget(t *testing.T) {
	b := startBroker(t, vfs.NewMem(1))
	b.s.admission.limit = 8 << 20
	b.s.admission.hold = 50 * time.Millisecond
	for range 16 {
		c, err := net.Dial("tcp", b.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "POST /api/v1/push HTTP/1.1\r\nHost: q\r\nContent-Length: %d\r\n\r\n{", 60<<20)
	}
	await(t, func() bool { used, _ := b.s.admission.state(); return used == 16*admitStep })
	if status, body := b.do("POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`); status != http.StatusCreated {
		t.Fatalf("%d %s", status, body)
	}
	large := `{"items":[{"queue":"q","payload":"` + strings.Repeat("x", 3<<20) + `"}]}`
	if status, body := b.do("POST", "/api/v1/push", large); status != http.StatusCreated {
		t.Fatalf("a body of several steps: %d %s", status, body)
	}
	if used, _ := b.s.admission.state(); used != 16*admitStep {
		t.Errorf("%d bytes of the budget are taken, want %d", used, 16*admitStep)
	}
}

// Connections over the bound wait in the kernel's queue and are served once
// others close: descriptors are what the log needs, too.
func TestConnectionsAreBounded(t *testing.T) {
	s := &Server{}
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := corkedListener{Listener: inner, s: s, slots: make(chan struct{}, 2)}
	accepted := make(chan net.Conn, 3)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				close(accepted)
				return
			}
			accepted <- c
		}
	}()
	var clients []net.Conn
	for range 3 {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		clients = append(clients, c)
	}
	first, second := <-accepted, <-accepted
	await(t, func() bool { return len(l.slots) == 2 })
	if len(accepted) != 0 {
		t.Fatal("a third connection was taken")
	}
	_ = first.Close()
	_ = first.Close() // gives its slot back once
	third := <-accepted
	if _, err := io.WriteString(third, "hello\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(clients[2]).ReadString('\n'); err != nil || line != "hello\n" {
		t.Fatalf("%q %v", line, err)
	}
	_, _ = second.Close(), third.Close()
	_ = inner.Close()
}
