package wire

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// echo answers with the request's body in the form that the path names.
func echo(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	switch r.URL.Path {
	case "/empty":
		w.WriteHeader(http.StatusNoContent)
	case "/chunked":
		for len(b) > 0 {
			n := min(1000, len(b))
			w.Write(b[:n])
			b = b[n:]
			w.(http.Flusher).Flush()
		}
	case "/close":
		w.Header().Set("Connection", "close")
		w.Write(b)
	default:
		w.Header().Set("Content-Length", fmt.Sprint(len(b)))
		w.WriteHeader(http.StatusCreated)
		w.Write(b)
	}
}

func TestConn(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(echo))
	defer s.Close()
	c := NewConn(strings.TrimPrefix(s.URL, "http://"))
	defer c.Close()
	for _, size := range []int{0, 1, 999, 1000, 5000, 200_000} {
		for path, want := range map[string]int{"/": 201, "/chunked": 200, "/close": 200, "/empty": 204} {
			text := strings.Repeat("x", size)
			c.Post(path)
			c.SetBody(append(c.Body(), text...))
			status, body, err := c.Do()
			if err != nil || status != want {
				t.Fatalf("%s with %d bytes: status %d, error %v; want %d", path, size, status, err, want)
			}
			if path == "/empty" {
				text = ""
			}
			if string(body) != text {
				t.Fatalf("%s: %d bytes came back, want %d", path, len(body), len(text))
			}
		}
	}
	c.Get("/")
	if status, body, err := c.Do(); err != nil || status != 201 || len(body) != 0 {
		t.Fatalf("GET: status %d, %d bytes, error %v", status, len(body), err)
	}
}

func TestConnDoesNotAllocate(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(echo))
	defer s.Close()
	c := NewConn(strings.TrimPrefix(s.URL, "http://"))
	defer c.Close()
	text := strings.Repeat("x", 3000)
	run := func() {
		c.Post("/")
		c.SetBody(append(c.Body(), text...))
		if _, _, err := c.Do(); err != nil {
			t.Fatal(err)
		}
	}
	run()
	c.Post("/")
	if n := testing.AllocsPerRun(100, func() {
		c.Post("/")
		c.SetBody(append(c.Body(), text...))
	}); n > 0 {
		t.Errorf("building a request allocates %v times", n)
	}
}

func TestConnDialsAgain(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/cut" {
			conn, _, _ := w.(http.Hijacker).Hijack()
			conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"))
			conn.Close()
		}
	}))
	defer s.Close()
	c := NewConn(strings.TrimPrefix(s.URL, "http://"))
	defer c.Close()
	c.Get("/cut")
	if _, _, err := c.Do(); err == nil {
		t.Fatal("an answer that ended early was taken for whole")
	}
	c.Get("/")
	if status, _, err := c.Do(); err != nil || status != 200 {
		t.Fatalf("after a cut answer: status %d, error %v", status, err)
	}
}

func TestScan(t *testing.T) {
	b := []byte(`{"success":true,"leaseId":"","messages":[{"transactionId":"a\"b","offset":12,"data":"offset","x":null},` +
		` {"transactionId" : "c","offset":-3,"data":{"offset":7}}],"n":1}`)
	for _, c := range []struct {
		name, first, last string
		count             int
	}{
		{"transactionId", `a\"b`, "c", 2},
		{"offset", "12", "7", 3},
		{"leaseId", "", "", 1},
		{"messages", "[", "[", 1},
		{"data", "offset", "{", 2},
		{"x", "null", "null", 1},
		{"n", "1", "1", 1},
	} {
		v, _, ok := Field(b, 0, c.name)
		if !ok || string(v) != c.first {
			t.Errorf("first %s is %q (%v), want %q", c.name, v, ok, c.first)
		}
		if v, ok = Last(b, c.name); !ok || string(v) != c.last {
			t.Errorf("last %s is %q (%v), want %q", c.name, v, ok, c.last)
		}
		if n := Count(b, c.name); n != c.count {
			t.Errorf("%s occurs %d times, want %d", c.name, n, c.count)
		}
	}
	if _, _, ok := Field(b, 0, "absent"); ok {
		t.Error("found a field that is not there")
	}
	if !True(b, "success") || True(b, "n") || Int(b, "n") != 1 || Int(b, "absent") != -1 {
		t.Error("True or Int is wrong")
	}
}
