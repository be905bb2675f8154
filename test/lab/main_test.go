package lab

import (
	"context"
	"errors"
	"flag"
	"log"
	"os"
	"os/signal"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// testLabs begins the names of the labs of tests.
const testLabs = "t-"

// TestMain takes the labs of tests down if the run is interrupted.
func TestMain(m *testing.M) {
	flag.Parse()
	if os.Geteuid() != 0 {
		m.Run()
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	defer context.AfterFunc(ctx, abandon)()
	if !testing.Short() { // only the complete tier brings labs up
		lock, err := os.OpenFile(RunsLock, os.O_CREATE|os.O_RDWR, 0o600)
		if err == nil {
			err = waitLock(ctx, log.Printf, func() error { return flockCurrent(lock, RunsLock) }, func() string { return "another run in a lab" })
		}
		if err != nil {
			log.Fatalf("lock %s: %v", RunsLock, err)
		}
		defer lock.Close()
	}
	m.Run()
}

func abandon() {
	names, err := All()
	for _, name := range names {
		if !strings.HasPrefix(name, testLabs) {
			continue
		}
		if _, downErr := Down(context.Background(), name, log.Printf); downErr != nil {
			log.Print(downErr)
		}
	}
	log.Fatal(errors.Join(errors.New("interrupted"), err))
}
