package ovs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

const databaseName = "Open_vSwitch"

// A probe that is not answered ends a session. The interval is Open vSwitch's own default; the main thread of a vswitchd that applies a
// bundle of 200,000 flows is busy for two seconds.
const (
	probeInterval = 5 * time.Second
	probeTimeout  = 15 * time.Second
)

// database is a session with ovsdb-server: transactions, and a copy of the monitored columns that is never behind this
// session's own transactions, since the server sends an update before the answer to the transaction that made it.
//
// libovsdb's own reconnecting is not used: it can't be stopped while the server is away. A session is thrown away with its
// copy when it ends, and link makes a new one.
type database struct {
	client   client.Client
	cache    *cache.TableCache
	observer observer
	flushes  chan struct{} // a note that vswitchd throws the flows away, or is about to

	ctx     context.Context // ends when the session is to end
	end     context.CancelFunc
	lost    chan struct{} // closed when the connection has ended
	workers sync.WaitGroup

	mu      sync.Mutex
	waiters map[string][]chan struct{} // by the UUID of the row that they wait for
	leaving map[string]int             // removed ports by name: the cur_cfg with which vswitchd has let go of them
}

// observer is told what happens to the database. Its functions must not block.
type observer struct {
	bridge   string
	onOFPort func(*database, interfaceRow) // an interface got another number, or lost it
	onFlush  func()                        // vswitchd has thrown the bridge's flows away
}

// dialDatabase connects and fills the copy.
func dialDatabase(ctx context.Context, socket string, o observer) (*database, error) {
	schema, err := databaseModel()
	if err != nil {
		return nil, fmt.Errorf("database model: %w", err)
	}
	silent := logr.Discard() // what goes wrong comes back as an error
	c, err := client.NewOVSDBClient(schema, client.WithEndpoint("unix:"+socket), client.WithLogger(&silent))
	if err != nil {
		return nil, fmt.Errorf("database client: %w", err)
	}
	db := &database{
		client:   c,
		observer: o,
		flushes:  make(chan struct{}, 1),
		lost:     make(chan struct{}),
		waiters:  map[string][]chan struct{}{},
		leaving:  map[string]int{},
	}
	db.ctx, db.end = context.WithCancel(context.Background())
	// Before Connect: libovsdb tells of a lost connection only who listens at that moment.
	db.workers.Go(db.attend)
	if err := db.connect(ctx); err != nil {
		db.close()
		return nil, &unavailableError{fmt.Errorf("connect to the database at %s: %w", socket, err)}
	}
	db.workers.Go(db.probe)
	db.workers.Go(db.followFlushes)
	return db, nil
}

func (db *database) connect(ctx context.Context) error {
	if err := db.client.Connect(ctx); err != nil {
		return err
	}
	db.cache = db.client.Cache()
	db.cache.AddEventHandler(&cache.EventHandlerFuncs{
		AddFunc:    func(_ string, now model.Model) { db.notice(nil, now) },
		UpdateFunc: func(_ string, old, now model.Model) { db.notice(old, now) },
		DeleteFunc: func(_ string, old model.Model) { db.noticeGone(old) },
	})
	_, err := db.client.Monitor(ctx, monitorOf(db.client))
	return err
}

// attend waits for the end of the connection.
func (db *database) attend() {
	defer close(db.lost)
	defer db.end()
	select {
	case <-db.client.DisconnectNotify():
	case <-db.ctx.Done():
		db.client.Close()
	}
}

// probe ends the session when the server does not answer any more.
func (db *database) probe() {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-db.ctx.Done():
			return
		}
		ctx, cancel := context.WithTimeout(db.ctx, probeTimeout)
		if err := db.client.Echo(ctx); err != nil {
			db.end()
		}
		cancel()
	}
}

// followFlushes tells of a flush when vswitchd has confirmed what led to it.
func (db *database) followFlushes() {
	for {
		select {
		case <-db.flushes:
		case <-db.ctx.Done():
			return
		}
		// Who changed the fail mode need not have asked for a confirmation (`ovs-vsctl --no-wait`).
		_, cfg, err := db.change(db.ctx)
		if err == nil {
			err = db.confirmed(db.ctx, cfg)
		}
		if err == nil || db.ctx.Err() == nil { // better too early than never
			db.observer.onFlush()
		}
	}
}

func (db *database) ended() <-chan struct{} { return db.lost }

func (db *database) close() {
	db.end()
	db.workers.Wait()
}

// transact applies all operations or none. An operation that waits for what is not so makes it fail with errOvertaken.
func (db *database) transact(ctx context.Context, ops ...ovsdb.Operation) ([]ovsdb.OperationResult, error) {
	var results []ovsdb.OperationResult
	err := db.ask(ctx, func(ctx context.Context) (err error) {
		results, err = db.client.Transact(ctx, ops...)
		return err
	})
	if err != nil {
		return nil, &unavailableError{fmt.Errorf("database transaction: %w", err)}
	}
	failed, err := ovsdb.CheckOperationResults(results, ops)
	if len(failed) > 0 {
		err = failed[0]
	}
	var waited *ovsdb.TimedOut
	if errors.As(err, &waited) {
		return nil, errOvertaken
	}
	if err != nil {
		return nil, fmt.Errorf("database transaction: %w", err)
	}
	return results, nil
}

// ask makes a call to the server. A call that fails before the caller's time is over ends the session, and returns when it has ended:
// nobody may be answered from the copy after somebody was told, for another reason than time, that the server is away.
func (db *database) ask(ctx context.Context, call func(context.Context) error) error {
	// libovsdb can't close a connection while a call waits on it.
	callable, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(db.ctx, cancel)()
	err := call(callable)
	ending := db.ctx.Err() != nil
	if !ending && (err == nil || ctx.Err() != nil) {
		return err
	}
	db.end()
	select {
	case <-db.lost:
	case <-ctx.Done():
	}
	if ending {
		return errConnectionLost()
	}
	return err
}

func errConnectionLost() error {
	return &unavailableError{errors.New("the connection to the database was lost")}
}

// errOvertaken says that somebody else changed the database between the look at the copy and the transaction.
var errOvertaken = errors.New("somebody else changes the same rows of the database again and again")

// change is transact with a request that vswitchd confirm the result: the answers to the operations, and the number for
// confirmed.
func (db *database) change(ctx context.Context, ops ...ovsdb.Operation) ([]ovsdb.OperationResult, int, error) {
	root, err := db.root()
	if err != nil {
		return nil, 0, err
	}
	self := whereUUID(root.UUID)
	ops = append(slices.Clone(ops),
		ovsdb.Operation{
			Op: ovsdb.OperationMutate, Table: tableRoot, Where: self,
			Mutations: []ovsdb.Mutation{*ovsdb.NewMutation("next_cfg", ovsdb.MutateOperationAdd, 1)},
		},
		ovsdb.Operation{Op: ovsdb.OperationSelect, Table: tableRoot, Where: self, Columns: []string{"next_cfg"}})
	results, err := db.transact(ctx, ops...)
	if err != nil {
		return nil, 0, err
	}
	rows := results[len(ops)-1].Rows
	if len(rows) != 1 {
		return nil, 0, errOvertaken // there is another root
	}
	cfg, ok := rows[0]["next_cfg"].(float64)
	if !ok {
		return nil, 0, fmt.Errorf("database: next_cfg is %v", rows[0]["next_cfg"])
	}
	return results, int(cfg), nil
}

// sync waits until the copy shows all that the server had done when it was asked.
func (db *database) sync(ctx context.Context) error {
	if err := db.ask(ctx, db.client.Echo); err != nil {
		return &unavailableError{fmt.Errorf("database: %w", err)}
	}
	return nil
}

// confirmed waits until vswitchd has done what the database said with the change of that number.
func (db *database) confirmed(ctx context.Context, cfg int) error {
	root, err := db.root()
	if err != nil {
		return err
	}
	return db.await(ctx, root.UUID, func() bool {
		root, err := db.root()
		return err == nil && root.CurCfg >= cfg
	})
}

// await waits until ready returns true. It is asked first, and then whenever the row with that UUID changed or went.
func (db *database) await(ctx context.Context, row string, ready func() bool) error {
	wake := make(chan struct{}, 1)
	db.mu.Lock()
	db.waiters[row] = append(db.waiters[row], wake)
	db.mu.Unlock()
	defer db.forget(row, wake)
	for !ready() {
		select {
		case <-wake:
		case <-db.lost:
			return errConnectionLost()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (db *database) forget(row string, wake chan struct{}) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.waiters[row] = slices.DeleteFunc(db.waiters[row], func(c chan struct{}) bool { return c == wake })
	if len(db.waiters[row]) == 0 {
		delete(db.waiters, row)
	}
}

// notice is called for each row that changed or came (old is nil), in one goroutine.
func (db *database) notice(old, now model.Model) {
	switch row := now.(type) {
	case *rootRow:
		db.wake(row.UUID)
	case *interfaceRow:
		db.wake(row.UUID)
		before, ok := old.(*interfaceRow)
		if ok && before.OFPort != nil && !equalOptional(before.OFPort, row.OFPort) {
			db.observer.onOFPort(db, *row)
		}
	case *bridgeRow:
		before, ok := old.(*bridgeRow)
		if ok && row.Name == db.observer.bridge && row.flushesAfter(before) {
			select {
			case db.flushes <- struct{}{}:
			default: // it is noted
			}
		}
	}
}

// noticeGone is called for each row that went, in the same goroutine.
func (db *database) noticeGone(old model.Model) {
	switch row := old.(type) {
	case *rootRow:
		db.wake(row.UUID)
	case *interfaceRow:
		db.wake(row.UUID)
		db.observer.onOFPort(db, row.gone())
	}
}

func (db *database) wake(row string) {
	db.mu.Lock()
	defer db.mu.Unlock()
	for _, c := range db.waiters[row] {
		select {
		case c <- struct{}{}:
		default: // it has not looked since the last time
		}
	}
}

// The copy. Each look at a table waits until an update of several rows is complete.

func (db *database) root() (*rootRow, error) {
	for _, r := range db.cache.Table(tableRoot).RowsShallow() {
		return r.(*rootRow), nil
	}
	return nil, fmt.Errorf("the database of Open vSwitch has no root row: start Open vSwitch by its service, or run `ovs-vsctl init`")
}

// bridge returns the bridge of that name.
func (db *database) bridge(name string) (*bridgeRow, bool) {
	return lookup(db, tableBridge, &bridgeRow{Name: name})
}

func (db *database) port(name string) (*portRow, bool) {
	return lookup(db, tablePort, &portRow{Name: name})
}

func (db *database) iface(name string) (*interfaceRow, bool) {
	return lookup(db, tableInterface, &interfaceRow{Name: name})
}

// lookup finds a row by the name in key, which is an index of all these tables.
func lookup[R any](db *database, table string, key *R) (*R, bool) {
	_, row, err := db.cache.Table(table).RowByModel(key)
	if err != nil || row == nil { // errors are for keys that are no rows
		return nil, false
	}
	return row.(*R), true
}

func rowAt[R any](db *database, table, uuid string) (*R, bool) {
	row, ok := db.cache.Table(table).Row(uuid).(*R)
	return row, ok
}
