"""Lines as systems of the world write them: each is recognised, with its time and its level.

The lines are written here in the shape that each system gives to its own. Times are in UTC, of a line without
a year in 2024. A line that is part of another one's event has no time of its own.
"""

# ruff: noqa: E501

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from nilometer.pipeline.formats.definition import builtin_formats, parse_formats
from nilometer.pipeline.formats.matcher import Matcher
from nilometer.pipeline.formats.proposals import propose

RECORDED = datetime(2024, 12, 31, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NO_TIME = None

Row = tuple[str, "str | None", str]
"""A line, its time in ISO 8601, and its level."""

SYSTEMS: dict[str, list[Row]] = {
    "android": [
        ("03-17 16:13:38.811  1702  2395 D WindowManager: printFreezingDisplayLogs wtoken = AppWindowToken{9f4ef63 token=Token{a64f992}}, allDrawn= false", "2024-03-17T16:13:38.811", "debug"),
        ("03-17 16:13:38.819  1702  8671 D PowerManagerService: acquire lock=233570404, flags=0x1, tag=\"View Lock\", name=com.android.systemui", "2024-03-17T16:13:38.819", "debug"),
        ("03-17 16:13:38.859  2227  2227 I PhoneStatusBar: cancelPeek", "2024-03-17T16:13:38.859", "info"),
        ("03-17 16:13:39.001  1702 17622 W ActivityManager: getRunningAppProcesses: caller 10113 does not hold it", "2024-03-17T16:13:39.001", "warning"),
        ("03-17 16:13:39.412 23650 23689 E audio_hw_primary: in_read: returned error -5", "2024-03-17T16:13:39.412", "err"),
        ("03-17 16:13:40.014  1702  1820 V ScreenOn : screen is on", "2024-03-17T16:13:40.014", "debug"),
        ("03-17 16:13:41.100   411   411 F libc    : Fatal signal 11 (SIGSEGV), code 1, fault addr 0x0", "2024-03-17T16:13:41.1", "crit"),
        ("--------- beginning of crash", NO_TIME, "unstated"),
    ],
    "apache": [
        ("[Sun Dec 04 04:47:44 2005] [notice] workerEnv.init() ok /etc/httpd/conf/workers2.properties", "2005-12-04T04:47:44", "notice"),
        ("[Sun Dec 04 04:51:18 2005] [error] mod_jk child workerEnv in error state 6", "2005-12-04T04:51:18", "err"),
        ("[Sun Dec 04 05:15:09 2005] [error] [client 222.166.160.184] Directory index forbidden by rule: /var/www/html/", "2005-12-04T05:15:09", "err"),
    ],
    "bgl": [
        ("- 1117838570 2005.06.03 R02-M1-N0-C:J12-U11 2005-06-03-15.42.50.675872 R02-M1-N0-C:J12-U11 RAS KERNEL INFO instruction cache parity error corrected", "2005-06-03T15:42:50.675872", "info"),
        ("APPREAD 1117869872 2005.06.04 R04-M1-N4-I:J18-U11 2005-06-04-00.24.32.432192 R04-M1-N4-I:J18-U11 RAS APP FATAL ciod: failed to read message prefix on control stream", "2005-06-04T00:24:32.432192", "crit"),
        ("- 1117848119 2005.06.03 R16-M1-N2-C:J17-U01 2005-06-03-18.21.59.871925 R16-M1-N2-C:J17-U01 RAS KERNEL INFO CE sym 2, at 0x0b85eee0, mask 0x05", "2005-06-03T18:21:59.871925", "info"),
        ("- 1118536327 2005.06.11 R30-M0-N9-C:J16-U01 2005-06-11-17.32.07.581048 R30-M0-N9-C:J16-U01 RAS KERNEL FATAL rts: kernel terminated for reason 1004", "2005-06-11T17:32:07.581048", "crit"),
        ("- 1119339918 2005.06.21 UNKNOWN_LOCATION 2005-06-21-00.45.18.222157 UNKNOWN_LOCATION NULL DISCOVERY SEVERE Can not get assembly information for node card", "2005-06-21T00:45:18.222157", "err"),
        ("- 1120241123 2005.07.01 R71-M0-L1-U18-A 2005-07-01-11.05.23.100207 R71-M0-L1-U18-A NULL HARDWARE WARNING EndServiceAction is restarting", "2005-07-01T11:05:23.100207", "warning"),
        ("- 1121183232 2005.07.12 R73-M1 2005-07-12-08.47.12.713442 R73-M1 NULL MMCS FAILURE ido chip status changed", "2005-07-12T08:47:12.713442", "err"),
    ],
    "hadoop": [
        ("2015-10-18 18:01:47,978 INFO [main] org.apache.hadoop.mapreduce.v2.app.MRAppMaster: Created MRAppMaster for application appattempt_1445144423722_0020_000001", "2015-10-18T18:01:47.978", "info"),
        ("2015-10-18 18:01:53,713 WARN [RMCommunicator Allocator] org.apache.hadoop.ipc.Client: Address change detected. Old: msra/10.190.173.170:8030 New: msra:8030", "2015-10-18T18:01:53.713", "warning"),
        ("2015-10-18 18:05:27,570 ERROR [RMCommunicator Allocator] org.apache.hadoop.mapreduce.v2.app.rm.RMContainerAllocator: ERROR IN CONTACTING RM. ", "2015-10-18T18:05:27.57", "err"),
        ("java.net.NoRouteToHostException: No Route to Host from  MININT-FNANLI5/127.0.0.1 to msra:8030 failed on socket timeout", NO_TIME, ""),
        ("\tat org.apache.hadoop.ipc.Client.call(Client.java:1480)", NO_TIME, ""),
        ("Caused by: java.net.NoRouteToHostException: No route to host: no further information", NO_TIME, ""),
    ],
    "hdfs": [
        ("081109 203615 148 INFO dfs.DataNode$PacketResponder: PacketResponder 1 for block blk_38865049064139660 terminating", "2008-11-09T20:36:15", "info"),
        ("081109 214043 2561 WARN dfs.DataNode$DataXceiver: 10.251.30.85:50010:Got exception while serving blk_-2918118818249673980", "2008-11-09T21:40:43", "warning"),
    ],
    "healthapp": [
        ("20171223-22:15:29:606|Step_LSC|30002312|onStandStepChanged 3579", "2017-12-23T22:15:29.606", "unstated"),
        ("20171223-22:15:29:61|Step_StandReportReceiver|30002312|onReceive action: android.intent.action.SCREEN_ON", "2017-12-23T22:15:29.061", "unstated"),
        ("20171224-0:5:9:7|Step_SPUtils|30002312|setTodayTotalDetailSteps=1514038440000##7007##548365", "2017-12-24T00:05:09.007", "unstated"),
        ("20171224-10:0:0:100|HiH_HiSyncControl|30002312|checkCurrentDay a new day comes , reset basicSyncCondition", "2017-12-24T10:00:00.1", "unstated"),
    ],
    "hpc": [
        ("134681 node-246 unix.hw state_change.unavailable 1077804742 1 Component State Change: Component \\042alt0\\042 is in the unavailable state (HWID=3180)", "2004-02-26T14:12:22", "unstated"),
        ("460903 Interconnect-0T00 switch_module error 1145552216 1 Linkerror event interval expired", "2006-04-20T16:56:56", "unstated"),
        ("2556665 node-D1 domain starttime 1074125213 1 PSU status ( on on )", "2004-01-15T00:06:53", "unstated"),
        ("344518 node-70 action start 1074119817 1 risBoot (command 1903)", "2004-01-14T22:36:57", "unstated"),
    ],
    "linux": [
        ("Jun 14 15:16:01 combo sshd(pam_unix)[19939]: authentication failure; logname= uid=0 euid=0 tty=NODEVssh ruser= rhost=218.188.2.4 ", "2024-06-14T15:16:01", "unstated"),
        ("Jun 19 04:08:55 combo syslogd 1.4.1: restart.", "2024-06-19T04:08:55", "unstated"),
        ("Jul  1 00:21:28 combo kernel: usb.c: registered new driver hub", "2024-07-01T00:21:28", "unstated"),
        ("Jul 27 14:41:58 combo irqbalance: irqbalance startup succeeded", "2024-07-27T14:41:58", "unstated"),
    ],
    "mac": [
        ("Jul  1 09:00:55 calvisitor-10-105-160-95 kernel[0]: IOThunderboltSwitch<0>(0x0)::listenerCallback - Thunderbolt HPD packet for route = 0x0 port = 11", "2024-07-01T09:00:55", "unstated"),
        ("Jul  1 09:01:06 calvisitor-10-105-160-95 com.apple.xpc.launchd[1] (com.apple.mdmclient.daemon[36]): Service only ran for 1 seconds.", "2024-07-01T09:01:06", "unstated"),
        ("Jul  1 09:03:11 calvisitor-10-105-160-95 Microsoft Word[14463]: Palette: restored", "2024-07-01T09:03:11", "unstated"),
        ("Jul  1 09:03:13 calvisitor-10-105-160-95 --- last message repeated 1 time ---", "2024-07-01T09:03:13", "unstated"),
        ("Jul  1 09:04:37 authorMacBook-Pro symptomsd[215]: __73-[NetworkAnalyticsEngine observeValueForKeyPath]_block_invoke unexpected switch value 2", "2024-07-01T09:04:37", "unstated"),
    ],
    "openssh": [
        ("Dec 10 06:55:46 LabSZ sshd[24200]: Invalid user webmaster from 173.234.31.186", "2024-12-10T06:55:46", "unstated"),
        ("Dec 10 07:13:43 LabSZ sshd[24227]: error: Received disconnect from 103.99.0.122: 14: No more user authentication methods available. [preauth]", "2024-12-10T07:13:43", "err"),
    ],
    "openstack": [
        ("nova-api.log.1.2017-05-16_13:53:08 2017-05-16 00:00:00.008 25746 INFO nova.osapi_compute.wsgi.server [req-38101a0b-2096-447d-96ea-a692162415ae 113d3a99c3da401fbd62cc2caa5b96d2 - - -] 10.11.10.1 \"GET /v2/servers/detail HTTP/1.1\" status: 200 len: 1893 time: 0.2477829", "2017-05-16T00:00:00.008", "info"),
        ("2017-05-16 00:00:04.500 2931 WARNING nova.virt.libvirt.imagecache [req-addc1839-2ed5-4778-b57e-5854eb7b8b09 - - - - -] Unknown base file: /var/lib/nova/instances/_base/a489c868f0c37da93b76227c91bb03908ac0e742", "2017-05-16T00:00:04.5", "warning"),
        ("2017-05-16 00:13:10.190 2931 ERROR oslo_service.periodic_task [-] Error during ComputeManager.update_available_resource", "2017-05-16T00:13:10.19", "err"),
    ],
    "proxifier": [
        ("[10.30 16:49:06] chrome.exe - proxy.cse.cuhk.edu.hk:5070 open through proxy proxy.cse.cuhk.edu.hk:5070 HTTPS", "2024-10-30T16:49:06", "unstated"),
        ("[10.30 16:49:07] chrome.exe *64 - www.google.com:443 close, 1301 bytes (1.27 KB) sent, 2134 bytes (2.08 KB) received, lifetime <1 sec", "2024-10-30T16:49:07", "unstated"),
        ("[07.26 11:02:38] QQ.exe - tcpconn.tencent.com:80 error : Could not connect through proxy - Proxy server cannot establish a connection", "2024-07-26T11:02:38", "unstated"),
    ],
    "spark": [
        ("17/06/09 20:10:40 INFO executor.CoarseGrainedExecutorBackend: Registered signal handlers for [TERM, HUP, INT]", "2017-06-09T20:10:40", "info"),
        ("17/06/09 20:10:48 WARN storage.BlockManager: Putting block rdd_0_0 failed", "2017-06-09T20:10:48", "warning"),
    ],
    "thunderbird": [
        ("- 1131566461 2005.11.09 dn228 Nov 9 12:01:01 dn228/dn228 crond(pam_unix)[2915]: session closed for user root", "2005-11-09T20:01:01", "unstated"),
        ("- 1131566463 2005.11.09 tbird-admin1 Nov 9 12:01:03 local@tbird-admin1 /apps/x86_64/system/ganglia-3.0.1/sbin/gmetad[1682]: data_thread() got not answer from any [Thunderbird_A1] datasource", "2005-11-09T20:01:03", "unstated"),
        ("VAPI 1131567086 2005.11.09 bn431 Nov 9 12:11:26 bn431/bn431 kernel: [KERNEL_IB][tsIbMadDispatch]Failed to post receive", "2005-11-09T20:11:26", "unstated"),
        ("- 1131566479 2005.11.09 eadmin1 Nov 9 12:01:19 src@eadmin1 last message repeated 4 times", "2005-11-09T20:01:19", "unstated"),
    ],
    "windows": [
        ("2016-09-28 04:30:30, Info                  CBS    Loaded Servicing Stack v6.1.7601.23505 with Core: C:\\Windows\\winsxs\\cbscore.dll", "2016-09-28T04:30:30", "info"),
        ("2016-09-28 04:30:31, Info                  CSI    00000001@2016/9/27:20:30:31.455 WcpInitialize (wcp.dll version 0.0.0.6) called (stack @0x7fed806eb5d)", "2016-09-28T04:30:31", "info"),
        ("2016-09-28 04:40:53, Error                 CBS    Failed to get session package state", "2016-09-28T04:40:53", "err"),
    ],
    "zookeeper": [
        ("2015-07-29 17:41:44,747 - INFO  [QuorumPeer[myid=1]/0:0:0:0:0:0:0:0:2181:FastLeaderElection@774] - Notification time out: 3200", "2015-07-29T17:41:44.747", "info"),
        ("2015-07-29 19:04:12,394 - WARN  [WorkerSender[myid=1]:QuorumCnxManager@368] - Cannot open channel to 3 at election address /10.10.34.13:3888", "2015-07-29T19:04:12.394", "warning"),
    ],
    "mysql": [
        ("2024-05-01T10:00:00.123456Z 0 [System] [MY-010116] [Server] /usr/sbin/mysqld (mysqld 8.0.36) starting as process 1", "2024-05-01T10:00:00.123456", "info"),
        ("2024-05-01T10:00:01.000001Z 5 [Warning] [MY-013360] [Server] Plugin sha256_password reported: deprecated", "2024-05-01T10:00:01.000001", "warning"),
        ("2024-05-01T10:00:02.500000+02:00 9 [ERROR] [MY-012592] [InnoDB] Operating system error number 2 in a file operation.", "2024-05-01T08:00:02.5", "err"),
        ("2019-05-01T10:00:00.123456Z 0 [Note] InnoDB: PUNCH HOLE support available", "2019-05-01T10:00:00.123456", "notice"),
        ("2024-05-01 10:00:00 0 [Note] InnoDB: Buffer pool(s) load completed at 240501 10:00:00", "2024-05-01T10:00:00", "notice"),
    ],
    "redis": [
        ("1:C 01 May 2024 10:00:00.123 * oO0OoO0OoO0Oo Redis is starting oO0OoO0OoO0Oo", "2024-05-01T10:00:00.123", "notice"),
        ("1:M 01 May 2024 10:00:00.125 # WARNING Memory overcommit must be enabled!", "2024-05-01T10:00:00.125", "warning"),
        ("27:S 01 May 2024 10:00:01.000 - Accepted 127.0.0.1:6379", "2024-05-01T10:00:01", "debug"),
    ],
    "mongodb": [
        ('{"t":{"$date":"2024-05-01T10:00:00.123+00:00"},"s":"I",  "c":"NETWORK",  "id":22943,   "ctx":"listener","msg":"Connection accepted","attr":{"remote":"127.0.0.1:4711","connectionCount":1}}', "2024-05-01T10:00:00.123", "info"),
        ('{"t":{"$date":"2024-05-01T12:00:00.123+02:00"},"s":"W",  "c":"CONTROL",  "id":22120,   "ctx":"initandlisten","msg":"Access control is not enabled","tags":["startupWarnings"]}', "2024-05-01T10:00:00.123", "warning"),
        ('{"t":{"$date":"2024-05-01T10:00:02.000+00:00"},"s":"D2", "c":"QUERY",    "id":1,       "ctx":"conn1","msg":"plan"}', "2024-05-01T10:00:02", "debug"),
        ("2019-05-01T10:00:00.123+0000 I  NETWORK  [listener] connection accepted from 10.0.0.1:4711 #1 (1 connection now open)", "2019-05-01T10:00:00.123", "info"),
    ],
    "alb": [
        ('https 2024-05-01T10:00:00.123456Z app/my-loadbalancer/50dc6c495c0c9188 192.168.131.39:2817 10.0.0.1:80 0.086 0.048 0.037 200 200 0 57 "GET https://www.example.com:443/a?b=c HTTP/1.1" "curl/7.46.0" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:elasticloadbalancing:us-east-2:123456789012:targetgroup/my-targets/73e2d6bc24d8a067 "Root=1-58337281-1d84f3d73c47ec4e58577259" "www.example.com" "arn:aws:acm:us-east-2:123456789012:certificate/12345678" 1 2024-05-01T09:59:59.999000Z "authenticate,forward" "-" "-" "10.0.0.1:80" "200" "-" "-"', "2024-05-01T10:00:00.123456", ""),
        ('http 2024-05-01T10:00:01.000000Z app/my-loadbalancer/50dc6c495c0c9188 192.168.131.39:2817 - -1 -1 -1 503 - 34 366 "GET http://www.example.com:80/ HTTP/1.1" "-" - - - "Root=1-58337364-23a8c76965a2ef7629b185e3" "-" "-" 0 2024-05-01T10:00:01.000000Z "forward" "-" "-" "-" "-" "-" "-"', "2024-05-01T10:00:01", ""),
    ],
    "iis": [
        ("#Software: Microsoft Internet Information Services 10.0", NO_TIME, ""),
        ("#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent) cs(Referer) sc-status sc-substatus sc-win32-status time-taken", NO_TIME, ""),
        ("2024-05-01 10:00:00 10.0.0.4 GET /index.html a=b 443 - 203.0.113.7 Mozilla/5.0+(Windows+NT+10.0) https://example.org/ 200 0 0 15", "2024-05-01T10:00:00", ""),
        ("2024-05-01 10:00:01 ::1 POST /api - 80 corp\\ann ::1 curl/8.0 - 500 0 64 1203", "2024-05-01T10:00:01", ""),
    ],
    "dotnet": [
        ("info: Microsoft.Hosting.Lifetime[14]", NO_TIME, "info"),
        ("      Now listening on: http://localhost:5000", NO_TIME, "unstated"),
        ("fail: Microsoft.AspNetCore.Diagnostics.ExceptionHandlerMiddleware[1]", NO_TIME, "err"),
        ("Unhandled exception. System.InvalidOperationException: Sequence contains no elements", NO_TIME, "unstated"),
        (" ---> System.IO.FileNotFoundException: Could not find file '/data/x'.", NO_TIME, "unstated"),
        ("   at System.Linq.ThrowHelper.ThrowNoElementsException()", NO_TIME, ""),
        ("   at Shop.Cart.Total(IEnumerable`1 items, Int32 n) in C:\\src\\Cart.cs:line 42", NO_TIME, ""),
        ("   --- End of inner exception stack trace ---", NO_TIME, "unstated"),
    ],
    "go": [
        ("2024/05/01 10:00:00 listening on :8080", "2024-05-01T10:00:00", "unstated"),
        ("2024/05/01 10:00:00.123456 main.go:12: listening on :8080", "2024-05-01T10:00:00.123456", "unstated"),
        ("panic: runtime error: index out of range [5] with length 3", NO_TIME, "crit"),
        ("[signal SIGSEGV: segmentation violation code=0x1 addr=0x0 pc=0x4581fa]", NO_TIME, "unstated"),
        ("goroutine 1 [running]:", NO_TIME, "unstated"),
        ("main.(*server).handle(0xc000010000, {0x1, 0x2, 0x3})", NO_TIME, "unstated"),
        ("\t/app/main.go:12 +0x1d", NO_TIME, "unstated"),
        ("created by net/http.(*Server).Serve in goroutine 1", NO_TIME, "unstated"),
        ("exit status 2", NO_TIME, "unstated"),
    ],
    "rails": [
        ('I, [2024-05-01T10:00:00.123456 #12]  INFO -- : [d8a6f0] Started GET "/posts" for 127.0.0.1 at 2024-05-01 10:00:00 +0000', "2024-05-01T10:00:00.123456", "info"),
        ("F, [2024-05-01T10:00:01.000000 #12] FATAL -- : [d8a6f0] ActionController::RoutingError (No route matches [GET] \"/x\"):", "2024-05-01T10:00:01", "crit"),
        ('Started GET "/posts?page=2" for 127.0.0.1 at 2024-05-01 10:00:00 +0200', "2024-05-01T08:00:00", "unstated"),
        ("Processing by PostsController#index as HTML", NO_TIME, "unstated"),
        ('  Parameters: {"page"=>"2"}', NO_TIME, "unstated"),
        ("  Post Load (0.4ms)  SELECT \"posts\".* FROM \"posts\"", NO_TIME, "unstated"),
        ("  Rendered posts/index.html.erb within layouts/application (Duration: 3.1ms | Allocations: 1602)", NO_TIME, "unstated"),
        ("Completed 200 OK in 15ms (Views: 9.1ms | ActiveRecord: 0.4ms | Allocations: 7912)", NO_TIME, "unstated"),
    ],
    "gunicorn": [
        ("[2024-05-01 10:00:00 +0000] [7] [INFO] Starting gunicorn 21.2.0", "2024-05-01T10:00:00", "info"),
        ("[2024-05-01 12:00:01 +0200] [9] [CRITICAL] WORKER TIMEOUT (pid:9)", "2024-05-01T10:00:01", "crit"),
    ],
    "dmesg": [
        ("[    0.000000] Linux version 6.1.0-18-amd64 (debian-kernel@lists.debian.org)", NO_TIME, "unstated"),
        ("[12345.678901] usb 1-1: new high-speed USB device number 2 using xhci_hcd", NO_TIME, "unstated"),
        ("[Wed May  1 10:00:00 2024] EXT4-fs (sda1): mounted filesystem", "2024-05-01T10:00:00", "unstated"),
        ("kern  :err   : [    1.234567] ata1: SError: { PHYRdyChg }", NO_TIME, "err"),
    ],
    "journald-export": [
        ("__CURSOR=s=8c7e;i=1;b=0f;m=1;t=2;x=3", NO_TIME, "unstated"),
        ("__REALTIME_TIMESTAMP=1714557600123456", "2024-05-01T10:00:00.123456", "unstated"),
        ("__MONOTONIC_TIMESTAMP=5000", NO_TIME, "unstated"),
        ("PRIORITY=3", NO_TIME, "err"),
        ("SYSLOG_IDENTIFIER=sshd", NO_TIME, "unstated"),
        ("_HOSTNAME=host", NO_TIME, "unstated"),
        ("MESSAGE=error: kex_exchange_identification: read: a=b Connection reset by peer", NO_TIME, "unstated"),
    ],
    "logfmt": [
        ('time="2024-05-01T10:00:00Z" level=warning msg="he said \\"a = b\\"" component=storage', "2024-05-01T10:00:00", "warning"),
        ('ts=2024-05-01T10:00:00.5Z caller=main.go:12 level=info msg="Starting Prometheus" version="(version=2.51.0, branch=HEAD)"', "2024-05-01T10:00:00.5", "info"),
        ('at=2024-05-01T10:00:01Z lvl=error msg="" err="dial tcp: lookup db: no such host" path="C:\\\\x"', "2024-05-01T10:00:01", "err"),
    ],
    "postgresql": [
        ("2024-05-01 10:00:00.123 UTC [1234] postgres@shop LOG:  duration: 12.3 ms", "2024-05-01T10:00:00.123", "info"),
        ("2024-05-01 10:00:00.123 UTC [1234] ann@shop ERROR:  relation \"x\" does not exist at character 15", "2024-05-01T10:00:00.123", "err"),
        ("2024-05-01 10:00:00.123 UTC [1234] ann@shop STATEMENT:  SELECT * FROM x", "2024-05-01T10:00:00.123", "statement"),
        ("2024-05-01 10:00:00 UTC [71-1] [unknown]@[unknown] LOG:  connection received: host=[local]", "2024-05-01T10:00:00", "info"),
        ("2024-05-01 12:00:00.5 +02 [71] LOG:  checkpoint starting: time", "2024-05-01T10:00:00.5", "info"),
        ("2024-05-01 10:00:00.123 UTC [1234] ann@shop FATAL:  password authentication failed for user \"ann\"", "2024-05-01T10:00:00.123", "crit"),
        ("\tFROM orders WHERE id = 5", NO_TIME, ""),
    ],
    "auditd": [
        ('type=SYSCALL msg=audit(1714557600.243:24287): arch=c000003e syscall=2 success=no exit=-13 a0=7fffd19c5592 comm="cat" exe="/bin/cat" key="sshd_config"', "2024-05-01T10:00:00.243", "unstated"),
        ("node=web1 type=CRED_DISP msg=audit(1714557601.000:24288): pid=1 uid=0 auid=1000 ses=3 msg='op=PAM:setcred acct=\"root\" res=success'", "2024-05-01T10:00:01", "unstated"),
    ],
    "zap": [
        ('{"level":"dpanic","ts":1714557600.5,"logger":"shop","caller":"cart/cart.go:12","msg":"the cart has no owner"}', "2024-05-01T10:00:00.5", "crit"),
        ('{"level":"info","ts":"2024-05-01T10:00:00.500Z","caller":"cart/cart.go:12","msg":"started"}', "2024-05-01T10:00:00.5", "info"),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def builtin() -> Matcher:
    return Matcher(builtin_formats())


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_line_of_a_system_is_recognised_with_its_time_and_its_level(
    builtin: Matcher, name: str
) -> None:
    recorded_us = (RECORDED - EPOCH) // timedelta(microseconds=1)
    for line, time, level in SYSTEMS[name]:
        found = builtin.match(line.encode(), recorded_us=recorded_us)
        assert found.format != "unparsed", line
        at = None if time is None else (datetime.fromisoformat(time).replace(tzinfo=UTC) - EPOCH)
        assert found.time_us == (None if at is None else at // timedelta(microseconds=1)), (line, found)
        assert found.level == level, (line, found)


def test_bytes_of_journald_are_the_text_that_they_are(builtin: Matcher) -> None:
    line = b'{"__REALTIME_TIMESTAMP":"1714557600000000","PRIORITY":"4","MESSAGE":[103,114,195,188,255]}'
    found = builtin.match(line)
    assert (found.format, found.level, found.fields["message"]) == ("journald", "warning", "grü\ufffd")
    same = builtin.match(line.replace(b"[103,114,195,188,255]", b'"[1,2]"'))
    assert same.fields["message"] == "[1,2]", "a text that only looks like one"


@pytest.mark.parametrize("count", [1, 400])
def test_a_proposal_takes_what_it_says(count: int) -> None:
    lines = [f"<{n}> 2024-05-01 10:00:00.{n:03d} shop started {n}" for n in range(count)]
    (best, *_) = propose(lines)
    matcher = Matcher(parse_formats(best.toml, "the proposal"))
    assert sum(matcher.match_text(line).format != "unparsed" for line in lines) == best.lines == count


def test_a_joined_trace_is_of_the_format_of_its_first_line(builtin: Matcher) -> None:
    line = "2015-10-18 18:05:27,570 ERROR [main] org.example.Cart: failed"
    trace = f"{line}\njava.io.IOException: no route\n\tat org.example.Cart.add(Cart.java:42)"
    found, of_line = builtin.match(trace.encode()), builtin.match(line.encode())
    assert (found.format, found.time_us, found.level) == (of_line.format, of_line.time_us, "err")
    assert (
        found.fields["message"]
        == "failed\njava.io.IOException: no route\n\tat org.example.Cart.add(Cart.java:42)"
    )
